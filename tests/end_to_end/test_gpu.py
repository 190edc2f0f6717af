"""Whole runs on an NVIDIA GPU, through the command line, against the same runs on the CPU."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.command_line import efficientbench, interrupted, losses, record

pytestmark = [pytest.mark.gpu, pytest.mark.proof]

VARIANTS = {
    "gqa_1.5B": (),
    "mla_1.5B": (),
    "nsa_1.5B": (),
    "moe_0.5Bx8": (),
    "learnable_absolute_1.5B": (),
    "relative_1.5B": (),
    "rope_1.5B": ("model.position.kind=alibi",),
}
AGREES = {"fp32": 1e-4, "bf16": 2e-2}
"""Largest difference of a step's losses, relative: float32 sums in another order, or a few roundings of bf16."""


@pytest.mark.parametrize("dtype", AGREES)
@pytest.mark.parametrize("name", VARIANTS)
def test_losses_are_those_of_the_cpu(name: str, dtype: str, tmp_path: Path, cache: str) -> None:
    words = ("run", name, "--smoke", *VARIANTS[name], "training.steps=3", f"data.cache={cache}")
    words += ("training.draw_weights_on=cpu", "measurement.warmup_steps=1", "measurement.min_steps=2")
    found = {}
    for device, precision in (("cpu", "fp32"), ("cuda", dtype)):
        output = tmp_path / device
        efficientbench(*words, f"device={device}", f"training.dtype={precision}", f"output={output}", expect=0)
        found[device] = losses(output / f"{name}_smoke")
    assert found["cuda"] == pytest.approx(found["cpu"], rel=AGREES[dtype])


def test_a_run_is_measured_and_resumes(tmp_path: Path, cache: str) -> None:
    words = ("run", "gqa_1.5B", "--smoke", "device=cuda", f"output={tmp_path}", f"data.cache={cache}")
    words += ("training.steps=400", "checkpoint.interval=50")
    folder = tmp_path / "gqa_1.5B_smoke"
    interrupted(folder, words, signal.SIGKILL, after=120)
    efficientbench(*words, expect=0)
    assert len(losses(folder)) == 400
    content = record(folder)
    assert min(content["amu_gb"], content["aec_w"], content["energy_j"]) > 0
