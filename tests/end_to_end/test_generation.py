"""`efficientbench generate` on the folders of finished runs, in any layout of training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import outside
from support.command_line import ROOT, TINY, Finished, damage, efficientbench

PROMPTS = ("def main(", "import os\n"[:-1], "Größe 漢字 is", "class")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS), encoding="utf-8")
    return path


@pytest.mark.proof
@pytest.mark.parametrize("layout", [(), ("parallel.tp=2", "model.vocab_size=1025"), ("parallel.pp=2",)])
def test_texts_do_not_depend_on_the_batch(
    train: Callable[..., Finished], layout: tuple[str, ...], prompts: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(train(*layout).folder, folder)
    words = ("generate", str(folder), "--file", str(prompts), "--max-new-tokens", "20", "--temperature", "1")
    alone = efficientbench(*words, "--batch", "1", expect=0, cwd=tmp_path).stdout
    assert alone == efficientbench(*words, "--batch", "3", expect=0, cwd=tmp_path).stdout
    assert alone != efficientbench(*words, "--seed", "1", expect=0, cwd=tmp_path).stdout
    for number, prompt in enumerate(PROMPTS, start=1):
        assert f"--- {number} of 4\n{prompt}" in alone
    greedy = efficientbench("generate", str(folder), "--prompt", PROMPTS[2], expect=0).stdout
    assert greedy.startswith(PROMPTS[2])
    assert len(greedy) > len(PROMPTS[2]) + 10


@pytest.mark.proof
def test_mistakes_are_refused_by_name(train: Callable[..., Finished], prompts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train().folder, folder)
    for words, message in (
        ((str(tmp_path / "none"),), "no such folder; give that of a run"),
        ((str(folder), "--step", "99"), "no such checkpoint; there: step_00000006"),
        ((str(folder), "--prompt", "a", "--file", str(prompts)), "--prompt and --file: give one of them"),
        ((str(folder), "training.seq_len=5"), "all else is the run's own"),
    ):
        done = efficientbench("generate", *words, expect=2)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    [weights] = sorted(folder.glob("checkpoint/step_*/*.distcp"))
    damage(weights)
    done = efficientbench("generate", str(folder), "--step", "6", expect=2)
    assert f"{weights.name}: damaged" in done.stderr


@pytest.mark.proof
def test_a_variant_from_outside_generates_where_the_command_names_it(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "outside"
    code.mkdir()
    outside.lay_out(code, monkeypatch)
    for name, other in (("delta", ("model.position.kind=none",)), ("window", ())):
        kind = f"model.attention.kind={outside.PACKAGE}.{name}:VARIANT"
        words = (f"output={tmp_path / name}", f"data.cache={cache}", *TINY, kind, *other)
        path = {"PYTHONPATH": f"{ROOT}:{code}"}
        efficientbench("run", "gqa_1.5B", "--smoke", *words, expect=0, **path)
        folder = str(tmp_path / name / "gqa_1.5B_smoke")
        done = efficientbench("generate", folder, expect=2, **path)
        assert "is code from outside this project" in done.stderr
        done = efficientbench("generate", folder, kind, "--prompt", "def", **path)
        if name == "delta":
            assert done.returncode == 0
            assert done.stdout.startswith("def")
        else:
            # It declares no state.
            assert done.returncode == 2
            assert "declares no formula for the state that decoding keeps" in done.stderr
