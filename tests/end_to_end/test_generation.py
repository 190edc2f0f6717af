"""`efficientbench generate` on the folders of finished runs, in any layout of training."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support import outside
from support.command_line import ROOT, TIME_LIMIT_S, TINY, Finished, damage, efficientbench, started

from efficientbench.basics.errors import CheckpointError, ConfigError
from efficientbench.generation.open_run import opened
from efficientbench.metrics.records.generation.generation import read_generation

PROMPTS = ("def main(", "import os\n"[:-1], "Größe 漢字 is", "class")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS), encoding="utf-8")
    return path


@pytest.mark.proof
def test_texts_do_not_depend_on_batch_and_ranks(train: Callable[..., Finished], prompts: Path, tmp_path: Path) -> None:
    # The vocabulary is padded for two ranks.
    folder = tmp_path / "elsewhere"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    # The limits of the training are not those of a generation, which would not even load the model in this time.
    job = json.loads((folder / "config.json").read_text())
    job["config"]["faults"]["hang_limit_s"] = 0.001
    (folder / "config.json").write_text(json.dumps(job))
    words = ("generate", str(folder), "--file", str(prompts), "--max-new-tokens", "20", "--temperature", "1")
    alone = efficientbench(*words, "--batch", "1", expect=0, cwd=tmp_path)
    for number, prompt in enumerate(PROMPTS, start=1):
        assert f"--- {number} of 4\n{prompt}" in alone.stdout
    for more in (("--batch", "3"), ("--tp", "2")):
        other = efficientbench(*words, *more, expect=0, cwd=tmp_path)
        assert (other.stdout, other.stderr) == (alone.stdout, alone.stderr)
    refused = efficientbench(*words, "--tp", "3", expect=2).stderr
    assert "tp: 3 does not divide the 4 heads" in refused
    missing = efficientbench(*words, "--tp", "2", "--step", "99", expect=2)
    assert "no such checkpoint; there: step_00000006" in missing.stderr
    assert "Traceback" not in missing.stderr


@pytest.mark.proof
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_prints_the_text_so_far(ranks: int, train: Callable[..., Finished], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    words = ("generate", str(folder), "--prompt", PROMPTS[0], "--max-new-tokens", "20000", "--tp", str(ranks))
    with started(*words) as process:
        assert process.stdout is not None
        begun = process.stdout.read(len(PROMPTS[0]) + 2)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=TIME_LIMIT_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert begun.startswith(PROMPTS[0])
    assert rest.endswith("\n")


@pytest.mark.proof
def test_mistakes_are_refused_by_name(train: Callable[..., Finished], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    done = efficientbench("generate", str(folder), "training.seq_len=5", expect=2)
    assert "all else is the run's own" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(ConfigError, match="no such folder; give that of a run"), opened(tmp_path / "none"):
        pass
    with pytest.raises(ConfigError, match="no such checkpoint; there: step_00000006"), opened(folder, 99):
        pass
    weights = sorted(folder.glob("checkpoint/step_*/*.distcp"))[0]
    damage(weights)
    with pytest.raises(CheckpointError, match=f"{weights.name}: damaged"), opened(folder, 6):
        pass


@pytest.mark.proof
def test_an_external_variant_generates_if_the_command_names_it(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "outside"
    code.mkdir()
    outside.lay_out(code, monkeypatch)
    path = {"PYTHONPATH": f"{ROOT}:{code}"}
    kind = f"model.attention.kind={outside.PACKAGE}.delta:VARIANT"
    words = (f"output={tmp_path}", f"data.cache={cache}", *TINY, kind, "model.position.kind=none")
    efficientbench("run", "gqa_1.5B", "--smoke", *words, expect=0, **path)
    folder = str(tmp_path / "gqa_1.5B_smoke")
    refused = efficientbench("generate", folder, expect=2, **path)
    assert "is code from outside this project" in refused.stderr
    # Without further options, and with letters of several bytes.
    greedy = efficientbench("generate", folder, kind, "--prompt", PROMPTS[2], expect=0, **path).stdout
    assert greedy.startswith(PROMPTS[2])
    assert len(greedy) > len(PROMPTS[2]) + 10


@pytest.mark.proof
def test_a_run_is_measured(train: Callable[..., Finished], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    sizes = ("--measure", "--prompt-tokens", "8", "--batch", "1,2", "--max-new-tokens", "3", "--repeats", "2")
    done = efficientbench("generate", str(folder), *sizes, "--weights", "none,int8", expect=0)
    assert "weights: int8 by torch _weight_int8pack_mm; left out: " in done.stderr
    for width, place in (("none", folder), ("int8", folder / "quantized" / "int8")):
        trained = read_generation(place / "generation.json")
        assert (trained.status, trained.weights, trained.quantization) == ("completed", "step 6", width)
        assert [(row.prompt_tokens, row.batch, row.failure) for row in trained.rows] == [(8, 1, None), (8, 2, None)]
    for words, message in (
        (("--measure", "--prompt", "a"), "prompts are random tokens"),
        (("--prompt-tokens", "8"), "need --measure"),
        (("--measure", "--max-new-tokens", "1"), "give 2 or more"),
    ):
        refused = efficientbench("generate", str(folder), *words, expect=2)
        assert message in " ".join(refused.stderr.split())
        assert "Traceback" not in refused.stderr


@pytest.mark.proof
def test_several_names_are_measured_into_one_table(cache: str, tmp_path: Path) -> None:
    sizes = ("--measure", "--prompt-tokens", "8", "--batch", "1", "--max-new-tokens", "3", "--repeats", "2")
    words = (f"output={tmp_path}", f"data.cache={cache}", *TINY)
    runs = ("gqa_1.5B", "mla_1.5B")
    done = efficientbench("generate", ",".join(runs), "--smoke", *sizes, *words, expect=0)
    for run in runs:
        file = tmp_path / f"{run}_smoke" / "generation.json"
        found = read_generation(file)
        assert (found.status, found.run, found.weights) == ("completed", run, "random")
        assert ("absorbed projections" in found.decode_path) == (run == "mla_1.5B")
        assert str(file) in done.stdout
        # As reports name it.
        assert f"{run} (smoke)" in done.stdout
