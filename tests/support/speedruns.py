"""The smallest speedrun: real text and rows, a model of two layers, the script that users call."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from replicas.places import job_environment
from support.command_line import ROOT, TINY

from efficientbench.speedrun.steps import BOOT

KEYS = (
    *(key for key in TINY if not key.startswith(("training.seq_len", "training.steps"))),
    "training.seq_len=512",
)
"""Of all stages; each test says how many steps they take."""
ROWS = 200
"""Conversations of a stage."""


def prepared(folder: Path, shared_data: Path, device: str = "cpu") -> tuple[str, ...]:
    """Lay down text, mixtures and an empty folder for items; return the words of a speedrun in `folder / "work"`."""
    work, items, text = folder / "work", folder / "items", folder / "text.txt"
    text.write_text((shared_data / "fineweb_edu" / "fineweb_sample.txt").read_text(encoding="utf-8")[:100_000])
    rows = shared_data / "gsm8k" / "train.jsonl"
    for stage, start in (("mid", 0), ("sft", ROWS)):
        mixture = f"tasks: [{{task: gsm8k, path: {rows}, start: {start}, stop: {start + ROWS}}}]\n"
        (folder / f"{stage}.yaml").write_text(mixture)
    items.mkdir()
    # The check of the machine has its own tests.
    work.mkdir()
    (work / f"checked_{device}_{os.uname().nodename}.txt").write_text(BOOT.read_text())
    made = (f"--{stage}={folder / f'{stage}.yaml'}" for stage in ("mid", "sft"))
    places = (f"--work={work}", f"--data={text}", f"--task-data={items}", *made)
    return (f"--device={device}", "--short", "--vocab-size=1024", "--limit=4", *places, *KEYS)


def run_folder(folder: Path, stage: str, size: str = "d4") -> Path:
    """Return the folder of a stage's run."""
    return folder / "work" / "runs" / f"{stage}_{size}" / "seed_1234"


def card_stages(folder: Path, pipeline: str) -> list[str]:
    """Return the stages of a pipeline in the first table of the report card, row by row."""
    card = (folder / "work" / "runs" / "report_card.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in card.partition("\n## ")[0].splitlines() if line.startswith(f"| {pipeline}")]
    return [row[2].strip() for row in rows]


def start(words: tuple[str, ...], script: str = "speedrun.sh", **changes: str) -> subprocess.Popen[str]:
    """Start a speedrun, whose output and errors come in one stream; `changes` are to its environment."""
    return subprocess.Popen(
        ["bash", str(ROOT / "launchers" / script), *words],
        env=job_environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
