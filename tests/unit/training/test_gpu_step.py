"""A whole optimizer step of each architecture at its real size on a GPU that has no memory and no numbers.

In a layout of several ranks it is that of the first one, whose transfers send nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import ROOT

FAKE = ROOT / "tests" / "support" / "fake_cuda"
MOST_LAUNCHES = {
    "gqa_1.5B": 1350,
    "mla_1.5B": 2300,
    "relative_1.5B": 2000,
    "moe_0.5Bx8": 4000,
    "nsa_1.5B": 60_000,
    "gqa_1.5B parallel.tp=2 parallel.sp=true": 1900,
    "gqa_1.5B parallel.cp=2": 2200,
}
"""Of a micro-batch and an update. NSA's grow with the sequence: its window and its compressed keys go by blocks."""
LAYERS = {"moe_0.5Bx8": 24}
"""Layers that send the host how many rows their experts have, by pinned copies that nothing waits for."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    if shutil.which("g++") is None:
        pytest.skip("no g++ compiles the device")
    if torch.version.cuda is not None:
        pytest.skip("this torch has a CUDA of its own")
    built, folder = tmp_path_factory.mktemp("fake_cuda") / "device.so", Path(torch.__file__).parent
    command = ["g++", "-shared", "-fPIC", "-std=c++20", str(FAKE / "device.cpp"), "-o", str(built)]
    command += [f"-I{folder}/include", f"-L{folder}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{folder}/lib"]
    subprocess.run(command, check=True)
    return built


@pytest.mark.parametrize(
    "name", [name if name == "gqa_1.5B" else pytest.param(name, marks=pytest.mark.proof) for name in MOST_LAUNCHES]
)
def test_a_step_waits_once_fits_the_plan_and_launches_few(name: str, library: Path) -> None:
    run, *layout = name.split()
    words = (*layout, "data.trained_vocab_size=4096", "training.micro_batch_size=2", "training.global_batch_size=2")
    done = subprocess.run(
        [sys.executable, str(FAKE / "step.py"), str(library), run, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["off_device"] == []
    # The step's one read, of what every rank has sent: see `Trainer.train_step`.
    assert seen["first_read"].startswith("finite.py find: DataDependentOutputException"), seen["first_read"]
    assert seen["copies_to_host"] == 1 + LAYERS.get(run, 0)
    assert (seen["copies_to_device"], seen["waits"]) == (0, [])
    assert seen["launches"] < MOST_LAUNCHES[name], seen["most"]
    assert seen["peak_bytes"] == pytest.approx(seen["plan_bytes"], rel=0.03)
