"""Runs that begin with the weights of another run, from the command line."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.command_line import Finished, efficientbench, interrupted, losses, record, steps

from efficientbench.training.checkpoints.manifest import checkpoint_folder

pytestmark = pytest.mark.proof
Tiny = tuple[str, ...]
RUN = ("training.steps=30", "checkpoint.interval=5", "training.lr_schedule=linear", "training.lr_scale=0.5")


@pytest.fixture(scope="module")
def base(train: Callable[..., Finished]) -> Path:
    """The folder of a complete run."""
    finished = train("parallel.tp=2")
    assert finished.done.returncode == 0, finished.done.stderr
    return finished.folder


def test_the_record_names_the_checkpoint_and_the_run_resumes(tiny: Tiny, base: Path, folder: Path) -> None:
    words = (*tiny, *RUN, f"init.run={base}")
    manifest = checkpoint_folder(base, 6) / "manifest.json"
    sha256 = hashlib.sha256(manifest.read_bytes()).hexdigest()
    done = efficientbench(*words, "label=whole", expect=0)
    assert f"begins with the weights of {base} after step 6 (SHA-256 {sha256})" in done.stdout
    whole = folder.with_name(f"{folder.name}__whole")
    assert record(whole)["config"]["init"] == {"run": str(base), "step": 6, "sha256": sha256, "state": None}
    rates = [line["learning_rate"] for line in steps(whole) if line["kind"] == "step"]
    assert rates == pytest.approx(np.interp(range(1, 31), [0, 3, 30], [0, 1.5e-3, 5e-6]).tolist())
    # What was learned counts from the first step on.
    assert losses(whole)[0] < losses(base)[0] - 0.1
    assert interrupted(folder, words, signal.SIGKILL, 12) == 1
    done = efficientbench(*words, expect=0)
    assert "resumes after step 10" in done.stdout
    assert losses(folder) == losses(whole)


def test_an_unfitting_initialisation_is_refused_before_a_rank_starts(tiny: Tiny, base: Path, folder: Path) -> None:
    words = (*tiny, f"init.run={base}")
    for override, reason in (
        ("model.ffn_hidden_size=96", f"error: init.run: {base} is of another model than this run: model.ffn_hidden"),
        ("data.trained_vocab_size=300", f"error: data.tokenizer: the weights of init.run={base} were trained with an"),
        ("init.step=3", f"error: init.run: {checkpoint_folder(base, 3)}: no such checkpoint; there: step_00000006"),
        (f"init.run={folder.parent}", f"error: init.run: {folder.parent} is not the folder of a run"),
    ):
        done = efficientbench(*words, override, expect=2)
        assert done.stderr.startswith(reason), done.stderr
        assert not (folder / "log").exists()
    done = efficientbench(*tiny, f"output={base.parent}", f"init.run={base}", expect=2)
    assert done.stderr.startswith(f"error: init.run: {base} is this run's own folder")
    assert (base / "record.json").exists()


def test_a_run_may_be_initialised_from_a_moved_folder(tiny: Tiny, base: Path, folder: Path, tmp_path: Path) -> None:
    """Every part of the base run was made in another folder, which is gone."""
    start = tmp_path / "start"
    start.mkdir()
    words = [each for each in tiny if not each.startswith(("output=", "data.cache="))]
    efficientbench(*words, "output=suite", "data.cache=data", cwd=start, expect=0)
    moved = (start / "suite" / folder.name).rename(tmp_path / "moved")
    (start / "data").rename(tmp_path / "lost")
    done = efficientbench("export", "moved", "exported", cwd=tmp_path, expect=0)
    assert "LlamaForCausalLM of step 6" in done.stdout
    efficientbench("generate", "moved", "--max-new-tokens", "2", cwd=tmp_path, expect=0)
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "Some other text."}) + "\n")
    efficientbench("evaluate", "moved", "--text", "text.jsonl", cwd=tmp_path, expect=0)
    assert json.loads((moved / "evaluation" / "loss.json").read_text())["items"] == 1
    done = efficientbench("report", "moved", cwd=tmp_path, expect=0)
    assert "gqa_1.5B" in done.stdout
    done = efficientbench(*tiny, "init.run=moved", cwd=tmp_path, expect=0)
    assert f"begins with the weights of {moved} after step 6" in done.stdout
