"""Processes with a GPU that has no memory and no numbers: `step.py` trains on it, `compile.py` compiles for it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.command_line import environment
from support.repository import ROOT

FOLDER = Path(__file__).parent


def build(folder: Path) -> Path:
    """Compile the device, or skip the test that wants it."""
    import torch

    if shutil.which("g++") is None:
        pytest.skip("no g++ compiles the device")
    if torch.version.cuda is not None:
        pytest.skip("this torch has a CUDA of its own")
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("fla") is None:
        pytest.skip("Triton or fla-core is not installed")
    built, torchs = folder / "device.so", Path(torch.__file__).parent
    command = ["g++", "-shared", "-fPIC", "-std=c++20", str(FOLDER / "device.cpp"), "-o", str(built)]
    command += [f"-I{torchs}/include", f"-L{torchs}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torchs}/lib"]
    subprocess.run(command, check=True)
    return built


def run(script: str, *words: str | Path) -> dict[str, Any]:
    """Return what a script of this folder prints as its last line."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *map(str, words)],
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@contextmanager
def forked(script: str, library: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """`ask("gqa_1.5B", …)` returns what `step` or `decode` prints as its last line, in a fork of one process."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, str(FOLDER / "forked.py"), str(library), script],
            env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(*words: str) -> dict[str, Any]:
            print(json.dumps(words), file=process.stdin, flush=True)
            printed = []
            for line in process.stdout:
                if line == "end\n":
                    break
                printed.append(line)
            errors.seek(0)
            assert printed, errors.read()[-6000:]
            seen: dict[str, Any] = json.loads(printed[-1])
            return seen

        yield ask
