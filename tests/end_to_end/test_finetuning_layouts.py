"""Where the ranks of a fine-tuning keep its state changes no loss: ZeRO-2, hpZ and offloading beside torch's DDP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT, environment, losses, record

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11"),
]

STEPS = "training.steps=4,training.validate_every_steps=0,checkpoint.interval=4,data.validation_examples=24"
LAYOUTS = (
    ("lora", "zero.stage=2,data.workers=1"),
    ("lora", "zero.stage=3,zero.offload=all"),
    ("lora", "zero.stage=3,zero.hpz=2"),
    ("full", "zero.stage=3,zero.hpz=2"),
)


def name_of(method: str, layout: str) -> str:
    return f"{method}_tiny,{layout},{STEPS}"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs, each of two ranks."""
    output = tmp_path_factory.mktemp("layouts")
    runs = [name_of(method, "zero.stage=0") for method in ("lora", "full")]
    runs += [name_of(method, layout) for method, layout in LAYOUTS]
    done = subprocess.run(
        [sys.executable, "-m", "support.tuned_in_forks", str(output / "cache"), str(output), *runs],
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return output


@pytest.mark.parametrize(("method", "layout"), LAYOUTS)
def test_losses_in_every_layout_match_ddp(tuned: Path, method: str, layout: str) -> None:
    plain, other = (tuned / name_of(method, each) for each in ("zero.stage=0", layout))
    assert len(losses(plain)) == 4
    assert losses(other) == pytest.approx(losses(plain), rel=1e-5)
    held_out = [record(folder)["finetuning"]["held_out"][-1]["loss"] for folder in (plain, other)]
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-5)


def deepspeed_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "deepspeed.json").read_text(encoding="utf-8"))
    return content


def test_the_folder_has_deepspeeds_configuration_with_every_figure(tuned: Path) -> None:
    assert not (tuned / name_of("lora", "zero.stage=0") / "deepspeed.json").exists()
    for method, layout in LAYOUTS:
        found = deepspeed_of(tuned / name_of(method, layout))
        assert "auto" not in json.dumps(found)
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        assert [found[name] for name in names] == [8, 2, 2]
        assert found["zero_optimization"]["reduce_bucket_size"] == 64 * 64
    offloaded = deepspeed_of(tuned / name_of(*LAYOUTS[1]))["zero_optimization"]
    assert offloaded["offload_param"]["device"] == offloaded["offload_optimizer"]["device"] == "cpu"
    assert deepspeed_of(tuned / name_of(*LAYOUTS[2]))["zero_optimization"]["zero_hpz_partition_size"] == 2
