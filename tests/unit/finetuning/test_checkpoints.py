"""How a checkpoint of a fine-tuning is published."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from efficientbench.finetuning.checkpoints import TuningCheckpoints
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.training.checkpoints.manifest import verify

WAIT_S = 60.0

pytestmark = pytest.mark.usefixtures("single_rank")


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core hashes one file after the other")
def test_files_of_a_checkpoint_are_hashed_in_parallel(tmp_path: Path) -> None:
    unused = cast(Any, None)
    config = resolve_tuning("lora_tiny")
    job = TuningJob(config, tmp_path, 1, 1, "", tmp_path / "examples", "", 4, 0, unused, unused)
    checkpoints = TuningCheckpoints(job, 0, lambda: {"elapsed_s": 7.0})
    written = checkpoints.partial / "checkpoint-2"
    written.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt"):
        (written / name).write_bytes(name.encode())
    both = threading.Barrier(2)

    def report(what: str) -> None:
        if what.startswith("hashing"):
            both.wait(WAIT_S)

    checkpoints.publish(2, [], report)
    found = verify(checkpoints.folder / "checkpoint-2")
    assert found.files.keys() == {"model.safetensors", "optimizer.pt"}
    assert (found.progress, checkpoints.steps) == ({"elapsed_s": 7.0}, [2])
