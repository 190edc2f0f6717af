"""Rendering that is killed: the next call continues to the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.proofs import proofs_but
from support.repository import ROOT

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat import build
from efficientbench.data_tools.chat.build import build_conversations
from efficientbench.data_tools.tokens.indexed import bin_path
from efficientbench.data_tools.tokens.inspection import verify_pair
from efficientbench.data_tools.tokens.manifest import manifest_path

PART_ROWS = 4
BEGIN = f"""
import os, signal, sys
from pathlib import Path
from efficientbench.data_tools.chat import build
from efficientbench.data_tools.tokenizing import building
build.PART_ROWS = {PART_ROWS}
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def render(workers=1, on_part=lambda done, parts: None):
    file, prefix, tokenizer = map(Path, sys.argv[1:])
    build.build_conversations(file, prefix, tokenizer, workers=workers, on_part=on_part)
"""
KILLS = {
    "after a part": "render(on_part=lambda done, parts: die() if done == 3 else None)",
    "with two processes": "render(2, lambda done, parts: die() if done == 3 else None)",
    "before the parts are merged": "build.merge_parts = die; render()",
    "before the manifest is written": "building.save_corpus = die; render()",
}


def contents(prefix: Path) -> dict[str, str]:
    """The checksum of every file beside a pair."""
    paths = [path for path in prefix.parent.rglob("*") if path.is_file()]
    return {str(path.relative_to(prefix.parent)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture
def file(rows: Path, tmp_path: Path) -> Path:
    path = tmp_path / "mixture.yaml"
    path.write_text(json.dumps({"tasks": [{"task": "messages", "path": "rows.jsonl", "epochs": 2}]}))
    return path


@pytest.fixture
def undisturbed(file: Path, tmp_path: Path, chat_bpe: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(build, "PART_ROWS", PART_ROWS)
    build_conversations(file, tmp_path / "undisturbed" / "chat", chat_bpe)
    return contents(tmp_path / "undisturbed" / "chat")


def started(file: Path, prefix: Path, tokenizer: Path, call: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + call, *map(str, (file, prefix, tokenizer))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", proofs_but(list(KILLS)[:1], KILLS))
def test_killed_rendering_resumes_to_the_same_bytes(
    file: Path, tmp_path: Path, chat_bpe: Path, undisturbed: dict[str, str], how: str
) -> None:
    prefix = tmp_path / "killed" / "chat"
    process = started(file, prefix, chat_bpe, KILLS[how])
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == -signal.SIGKILL, errors
    assert not manifest_path(prefix).exists()
    finished = sorted(path.name for path in (tmp_path / "killed" / "chat.parts").glob("0*.json"))
    assert len(finished) >= 3
    seen = []
    build_conversations(file, prefix, chat_bpe, on_part=lambda done, _: seen.append(done))
    assert len(seen) == 10 - len(finished)  # what was finished was not made again
    assert contents(prefix) == undisturbed


def test_a_damaged_part_is_rebuilt(file: Path, tmp_path: Path, chat_bpe: Path, undisturbed: dict[str, str]) -> None:
    prefix = tmp_path / "killed" / "chat"
    started(file, prefix, chat_bpe, KILLS["before the parts are merged"]).communicate(timeout=120)
    mask = tmp_path / "killed" / "chat.parts" / "000004.mask"
    mask.write_bytes(bytes(mask.stat().st_size))
    seen = []
    build_conversations(file, prefix, chat_bpe, on_part=lambda done, _: seen.append(done))
    assert seen == [10]
    assert contents(prefix) == undisturbed


def test_rendering_does_not_resume_with_another_mixture(file: Path, tmp_path: Path, chat_bpe: Path) -> None:
    prefix = tmp_path / "killed" / "chat"
    started(file, prefix, chat_bpe, KILLS["before the parts are merged"]).communicate(timeout=120)
    file.write_text(file.read_text().replace("2", "3"))
    with pytest.raises(DataError, match=r"was begun with other mixture: .*delete the folder .*chat\.parts"):
        build_conversations(file, prefix, chat_bpe)
    assert not bin_path(prefix).exists()


@pytest.mark.proof
def test_rendering_killed_at_random_moments_resumes_to_the_same_bytes(
    file: Path, tmp_path: Path, chat_bpe: Path, undisturbed: dict[str, str]
) -> None:
    """Each run continues from what the last one left, until one is finished."""
    moments = random.Random(0)
    killed = finished = 0
    prefix = tmp_path / "0" / "chat"
    while killed < 10:
        process = started(file, prefix, chat_bpe, "render(2)")
        while not (prefix.parent / "chat.parts" / "plan.json").exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 1.2))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if manifest_path(prefix).exists():
            verify_pair(prefix)
            assert {name: each for name, each in contents(prefix).items() if "parts" not in name} == undisturbed
            finished += 1
            prefix = tmp_path / str(finished) / "chat"
    build_conversations(file, prefix, chat_bpe)
    assert contents(prefix) == undisturbed
