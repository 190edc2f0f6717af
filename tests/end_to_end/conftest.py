"""Finished runs that many tests look at."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from replicas.places import job_environment
from support import outside
from support.command_line import ROOT, TIME_LIMIT_S, TINY, Finished, efficientbench
from support.conversation_pairs import VOCABULARY, write_conversations

SCRIPT = ROOT / "experiments" / "attention_variants" / "run_gqa_1.5B.sh"


@pytest.fixture
def two_ports() -> int:
    """A port that was free a moment ago, as was the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


@pytest.fixture
def tiny(tmp_path: Path, cache: str) -> tuple[str, ...]:
    """The arguments of a run of the smallest model."""
    return ("run", "gqa_1.5B", "--smoke", f"output={tmp_path}", f"data.cache={cache}", *TINY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the run of `tiny` writes to."""
    return tmp_path / "gqa_1.5B_smoke"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of the commands: this checkout, and the code from outside beside it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    outside.lay_out(folder, monkeypatch)
    return f"{ROOT}:{folder}"


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Callable[..., Finished]:
    """`train("key=value", …)` runs the smallest model to its end; the same words are run once."""
    finished: dict[tuple[str, ...], Finished] = {}

    def run(*overrides: str) -> Finished:
        if overrides not in finished:
            output = tmp_path_factory.mktemp("run")
            words = ("run", "gqa_1.5B", "--smoke", f"output={output}", f"data.cache={cache}", *TINY, *overrides)
            finished[overrides] = Finished(output / "gqa_1.5B_smoke", efficientbench(*words))
        return finished[overrides]

    return run


@pytest.fixture(scope="session")
def chat_run(train: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has learned a few conversations; its tokens are bytes and chat tokens."""
    pair = write_conversations(tmp_path_factory.mktemp("pair"), 60)
    words = ("training.objective=sft", f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]", f"data.path={pair}")
    return train(*words).folder


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Finished:
    """The script of a named run with --smoke, on fewer tokens than it has by itself."""
    output = tmp_path_factory.mktemp("smoke")
    words = [f"output={output}", f"data.cache={cache}", "training.steps=20", "training.seq_len=64"]
    done = subprocess.run(
        ["bash", str(SCRIPT), "--smoke", *words, "training.validation_interval=10"],
        cwd=output,
        env=job_environment(COLUMNS="80"),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    return Finished(output / "gqa_1.5B_smoke", done)
