"""Which processes a rank's sensors take for the run's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.configs import tiny

from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.devices.cpu import CPU
from efficientbench.devices.cuda import CUDA
from efficientbench.metrics.sensors.host import HostSensor
from efficientbench.metrics.sensors.nvml import NvmlSensor
from efficientbench.running.job import Job


class OneGPU(CUDA):
    """A GPU that torch does not see."""

    def memory_capacity_bytes(self) -> int:
        return 80 << 30

    def names(self) -> list[str]:
        return ["NVIDIA H100 80GB HBM3"]


@pytest.mark.usefixtures("single_rank")
def test_the_launcher_belongs_to_the_run_but_its_memory_does_not_count_on_a_host() -> None:
    from efficientbench.training.waits import Waits
    from efficientbench.worker.build_monitor import build_monitor

    config = tiny("gqa_1.5B", "training.steps=60")
    layout = Layout.of(config, devices=1, oversubscribe=True)
    job = Job(config, layout, plan_budget(config, None), (), Path("unused"))
    found: dict[type, Any] = {}
    for device in (OneGPU(), CPU()):
        monitor = build_monitor(job, device, 0, 0, Waits(device, 1))
        found |= {type(sensor): sensor for sensor in monitor._sensors or ()}
    assert set(found[NvmlSensor]._pids) == {os.getpid(), os.getppid()}
    assert set(found[HostSensor]._roots) == {os.getpid()}
