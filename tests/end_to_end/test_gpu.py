"""Whole runs on an NVIDIA GPU, through the command line, against the same runs on the CPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command_line import TINY, efficientbench, environment, free_port, interrupted, losses, record
from support.conversation_pairs import VOCABULARY, write_conversations
from support.outside_rewards import write_questions

from efficientbench.metrics.records.generation.generation import read_generation

pytestmark = [pytest.mark.gpu, pytest.mark.proof]

CASES = {
    "gqa": ("gqa_1.5B",),
    "mla": ("mla_1.5B",),
    "nsa": ("nsa_1.5B",),
    "gdn": ("gdn_1.5B",),
    "kda": ("kda_3to1_1.5B",),
    "mamba2": ("mamba2_1.5B",),
    "experts": ("moe_0.5Bx8",),
    "learned positions": ("learnable_absolute_1.5B",),
    "relative": ("relative_1.5B",),
    "ALiBi": ("rope_1.5B", "model.position.kind=alibi"),
    "nanochat": ("nanochat_d12",),
    "Muon": ("gqa_1.5B", "training.optimizer=muon"),
}
THREE_STEPS = ("training.steps=3", "training.draw_weights_on=cpu", "measurement.warmup_steps=1")
PLACES = {"cpu": ("cpu", "fp32"), "fp32": ("cuda", "fp32"), "bf16": ("cuda", "bf16")}
AGREES = {"fp32": 1e-4, "bf16": 2e-2}
"""Largest difference of a step's losses, relative: float32 sums in another order, or a few roundings of bf16."""
ON_CONVERSATIONS = (*TINY, f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]")
BOUND = """
from efficientbench.devices.cuda import CUDA
device = CUDA()
place = device.prepare(0)
import torch.distributed as dist
from efficientbench.training import groups
with groups.world(device.backend, bound_to=device.group_device(place, stages=1)):
    dist.barrier()
    print(dist.distributed_c10d._get_default_group().bound_device_id)
"""


def losses_by_place(words: tuple[str, ...], output: Path, cache: str) -> dict[str, list[float]]:
    """The losses of the same run at each of `PLACES`, made beside each other."""

    def run(label: str) -> list[float]:
        device, dtype = PLACES[label]
        places = (f"device={device}", f"training.dtype={dtype}", f"output={output / label}", f"data.cache={cache}")
        efficientbench("run", words[0], "--smoke", *words[1:], *places, expect=0)
        return losses(output / label / f"{words[0]}_smoke")

    with ThreadPoolExecutor() as pool:
        return dict(zip(PLACES, pool.map(run, PLACES), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_losses_on_a_gpu_match_the_cpu(case: str, tmp_path: Path, cache: str) -> None:
    found = losses_by_place((*CASES[case], *THREE_STEPS, "measurement.min_steps=2"), tmp_path, cache)
    assert len(found["cpu"]) == 3
    for dtype, relative in AGREES.items():
        assert found[dtype] == pytest.approx(found["cpu"], rel=relative), dtype


def test_losses_of_sft_on_a_gpu_match_the_cpu(tmp_path: Path, cache: str) -> None:
    pair = write_conversations(tmp_path / "pair", 300)
    words = ("gqa_1.5B", *ON_CONVERSATIONS, *THREE_STEPS, "training.objective=sft", f"data.path={pair}")
    found = losses_by_place((*words, "measurement.min_steps=2"), tmp_path, cache)
    for dtype, relative in AGREES.items():
        assert found[dtype] == pytest.approx(found["cpu"], rel=relative), dtype


def test_a_run_is_measured_and_resumes(tmp_path: Path, cache: str) -> None:
    words = ("run", "gqa_1.5B", "--smoke", "device=cuda", f"output={tmp_path}", f"data.cache={cache}")
    words += ("training.steps=400", "checkpoint.interval=50")
    folder = tmp_path / "gqa_1.5B_smoke"
    interrupted(folder, words, signal.SIGKILL, after=120)
    efficientbench(*words, expect=0)
    assert len(losses(folder)) == 400
    content = record(folder)
    assert min(content["amu_gb"], content["aec_w"], content["energy_j"]) > 0


def test_a_run_is_evaluated_and_generates(tmp_path: Path, cache: str) -> None:
    words = ("run", "gqa_1.5B", "--smoke", "device=cuda", f"output={tmp_path}", f"data.cache={cache}", *TINY)
    efficientbench(*words, expect=0)
    folder = tmp_path / "gqa_1.5B_smoke"
    efficientbench("evaluate", str(folder), "--batch-tokens", "200", expect=0)
    summary = json.loads((folder / "evaluation" / "loss.json").read_text())
    assert summary["device"] == "cuda"
    assert summary["figures"]["loss"] == pytest.approx(record(folder)["validation_loss"], rel=1e-5)
    assert efficientbench("generate", str(folder), "--prompt", "def", expect=0).stdout.startswith("def")
    sizes = ("--prompt-tokens", "8", "--batch", "1,2", "--max-new-tokens", "3", "--repeats", "2")
    efficientbench("generate", str(folder), "--measure", *sizes, expect=0)
    rows = read_generation(folder / "generation.json").rows
    assert [row.failure for row in rows] == [None, None]
    for row in rows:
        assert row.decode is not None
        assert (row.decode.energy_j or 0.0) > 0.0, row.decode.unavailable


def test_reinforcement_learning_samples_and_updates(tmp_path: Path, cache: str) -> None:
    pair = write_conversations(tmp_path / "pair", 60)
    questions = write_questions(tmp_path / "questions.jsonl", 5)
    words = ("run", "gqa_1.5B", "--smoke", "device=cuda", f"output={tmp_path}", f"data.cache={cache}")
    words += (*ON_CONVERSATIONS, "training.objective=rl", f"data.path={pair}", f"rl.questions={questions}")
    efficientbench(*words, "rl.samples=2", "rl.max_new_tokens=8", "training.steps=8", expect=0)
    found = record(tmp_path / "gqa_1.5B_smoke")["reinforcement"]
    for phase in ("rollouts", "updates"):
        assert min(found[phase]["tokens"], found[phase]["time_s"]) > 0


def test_process_groups_are_made_for_the_gpu_from_the_start() -> None:
    meeting = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, "-c", BOUND], env=environment(**meeting), capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[-1:] == ["cuda:0"], done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
@pytest.mark.parametrize("dtype", AGREES)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_fine_tuning_under_zero_3_has_the_losses_of_the_cpu(method: str, dtype: str, tmp_path: Path) -> None:
    words = ("finetune", f"{method}_tiny", "cpu_ranks=1", f"cache={tmp_path / 'cache'}")
    words += ("training.steps=4", "training.validate_every_steps=0", "data.validation_examples=24")
    found = {}
    for device, stage, precision in (("cpu", 0, "fp32"), ("cuda", 3, dtype)):
        places = (f"device={device}", f"output={tmp_path / device}")
        efficientbench(*words, f"zero.stage={stage}", f"training.dtype={precision}", *places, expect=0)
        found[device] = losses(tmp_path / device / f"{method}_tiny")
    assert found["cuda"] == pytest.approx(found["cpu"], rel=AGREES[dtype])
    content = record(tmp_path / "cuda" / f"{method}_tiny")
    assert content["finetuning"]["saved_numbers"] > 0
    assert min(content["amu_gb"], content["aec_w"], content["energy_j_per_sample"]) > 0
