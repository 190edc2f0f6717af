"""CORE during training: what is refused before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.configs import tiny

from efficientbench.basics.errors import ConfigError
from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.devices.cpu import CPU
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.job import Job


def test_a_missing_bundle_of_core_is_named_by_its_key(tmp_path: Path) -> None:
    from efficientbench.worker.listeners.scores import CoreDuringTraining

    folder = tmp_path / "bundle"
    config = tiny("gqa_1.5B", "evaluation.core_every=3", f"evaluation.core_data={folder}")
    job = Job(config, Layout.of(config, devices=1, oversubscribe=True), plan_budget(config, None), (), tmp_path)
    with pytest.raises(ConfigError, match=f"^evaluation.core_data: {folder}: no such folder$"):
        CoreDuringTraining.of(job, HeartbeatWriter(), lambda: None, CPU())  # type: ignore[arg-type,return-value]
