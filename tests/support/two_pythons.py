"""Runs that two Pythons train by turns: each reads the other's checkpoints, and the end is that of one Python alone.

    python -m support.two_pythons OTHER FOLDER      OTHER: an interpreter with the same torch

A pretraining run and a fine-tuning under ZeRO-3, each stopped twice. One exports the model, the other imports it.
Exits with 1 and says what is not so.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.command_line import TINY, environment, losses, record, until
from support.every_format import write_data

STOPS = 2


def call(python: str, *words: str) -> str:
    """Run a command of ours by a Python and return what it prints; exit where it fails."""
    done = subprocess.run(
        [python, "-m", "efficientbench.cli", *words], env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{python}: {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def stop(python: str, folder: Path, *words: str) -> str:
    """Run a command of ours until it has trained two steps more, stop it, so that it saves, and return its output."""
    before = len(losses(folder))
    run = subprocess.Popen(
        [python, "-m", "efficientbench.cli", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until(lambda: len(losses(folder)) >= before + 2 or run.poll() is not None, f"two further steps in {folder}")
    run.send_signal(signal.SIGTERM)
    told = run.communicate()[0]
    if run.returncode != 143:
        sys.exit(f"{python}: {' '.join(words)} did not stop: exit code {run.returncode}\n{told}")
    return told


def by_turns(pythons: Sequence[str], output: Path, name: str, *words: str) -> Path:
    """Train a run by turns, compare it with one that a single Python has trained, and return its folder."""
    folder, whole = output / "turns" / name, output / "whole" / name
    call(pythons[0], *words, f"output={whole.parent}")
    told = [stop(pythons[turn % 2], folder, *words, f"output={folder.parent}") for turn in range(STOPS)]
    told.append(call(pythons[STOPS % 2], *words, f"output={folder.parent}"))
    results = [(losses(each), record(each)["validation_loss"], record(each)["status"]) for each in (folder, whole)]
    # The record of a fine-tuning has its last resumption alone.
    resumed = sum(re.search("^resumes ", each, re.MULTILINE) is not None for each in told)
    if resumed != STOPS or results[0] != results[1]:
        sys.exit(f"{folder}: resumed {resumed} times, with other losses than {whole}: {results}")
    return folder


def main(other: str, output: Path) -> None:
    """Train by turns, export and import."""
    pythons = (sys.executable, other)
    # The samples that come with the program are cut from the interpreter's own documentation.
    write_data(output / "data")
    pair = (f"data.path={output / 'data' / 'tokens'}", "model.vocab_size=512")
    places = (f"data.cache={output / 'cache'}", *TINY, *pair)
    run = by_turns(
        pythons, output, "gqa_1.5B_smoke", "run", "gqa_1.5B", "--smoke", *places, "parallel.dp=2", "training.steps=300"
    )
    call(other, "export", str(run), str(output / "exported"))
    call(sys.executable, "import", str(output / "exported"), "--output", str(output / "imported"))
    call(other, "report", str(run.parent))
    few = ("data.validation_examples=8", "training.validate_every_steps=0", "zero.stage=3", "training.steps=60")
    rows = (f"data.path={output / 'data' / 'rows.jsonl'}", f"cache={output / 'cache'}")
    by_turns(pythons, output, "lora_tiny", "finetune", "lora_tiny", "device=cpu", *rows, *few)
    print(f"{sys.executable} and {other} train by turns as one does: a pretraining run and a fine-tuning")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
