"""Figures that the benchmark scripts measure, written for the docs to docs/measured/<script>.json."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.repository import ROOT

from efficientbench.devices.base import Device
from efficientbench.devices.cpu import CPU
from efficientbench.metrics.files import write_whole

MEASURED = ROOT / "docs" / "measured"
UNKNOWN_COMMIT = "unknown"
"""Of a tree that was carried to another machine without its history."""


@dataclass(frozen=True)
class Figure:
    """One measured value."""

    what: str
    value: float
    unit: str = ""
    interval: tuple[float, float] | None = None
    interval_kind: str = "95 %"
    """What the interval is: `95 %`, or `range` for the lowest and the highest value."""
    n: int = 1
    n_of: str = "run"

    @classmethod
    def with_range(cls, what: str, values: Sequence[float], unit: str = "", n_of: str = "rounds") -> Figure:
        """Return the median of measured values with their range."""
        return cls(what, statistics.median(values), unit, (min(values), max(values)), "range", len(values), n_of)

    @classmethod
    def with_bootstrap(
        cls,
        what: str,
        values: Sequence[float],
        center: Callable[[Sequence[float]], float],
        unit: str = "",
        n_of: str = "rounds",
    ) -> Figure:
        """Return the center of measured values with its 95 % interval, by the bootstrap."""
        generator = random.Random(0)
        centers = sorted(center(generator.choices(values, k=len(values))) for _ in range(2000))
        return cls(what, center(values), unit, (centers[50], centers[1949]), n=len(values), n_of=n_of)

    def __str__(self) -> str:
        text = f"{self.what}: {_rounded(self.value):,} {self.unit}".rstrip()
        if self.interval is None:
            return text
        low, high = (f"{_rounded(each):,}" for each in self.interval)
        return f"{text} ({self.interval_kind} {low} to {high}, {self.n} {self.n_of})"


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a benchmark's parser, with its module docstring as description and the option `--write`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the figures to docs/measured for the docs")
    return parser


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


def report(
    script: str,
    arguments: argparse.Namespace,
    figures: dict[str, Figure],
    conditions: str,
    device: Device | None = None,
    machine: Mapping[str, str] | None = None,
) -> None:
    """Print the figures of `script` (its `__file__`), measured on `device` (the CPU); write them with `--write`.

    `machine`: the fields `machine`, `software`, `commit` and `date` of a measurement that was made elsewhere.
    """
    print(conditions, *figures.values(), sep="\n", flush=True)
    if arguments.write:
        plain = {key: _plain(figure) for key, figure in figures.items()}
        write_content(script, device or CPU(), {**(machine or {}), "conditions": conditions, "figures": plain})


def write_content(script: str, device: Device, content: dict[str, object], name: str | None = None) -> None:
    """Write `content` beside what every file states: script, machine, software, commit and date.

    name: of the file; None: the script's.
    """
    import torch

    path = Path(script).resolve()
    cores = f"{len(os.sched_getaffinity(0))} cores of " if device.type == "cpu" else ""
    about = {
        "script": str(path.relative_to(ROOT)),
        "machine": f"{cores}{device.names()[0]}",
        "software": f"torch {torch.__version__}",
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }
    target = MEASURED / f"{name or path.stem}.json"
    write_whole(target, json.dumps(about | content, indent=2, ensure_ascii=False) + "\n")
    print(f"{target}: now run python docs/generate.py")


def write_row(script: str, row: dict[str, str], place: Callable[[dict[str, str]], Any], conditions: str) -> None:
    """Write a row measured on the CPU beside the rows that are there already.

    `place` orders the rows; one that has the row's own place is replaced.
    """
    kept = [each for each in written_rows(script) if place(each) != place(row)]
    rows = sorted([*kept, row], key=place)
    write_content(script, CPU(), {"conditions": conditions, "rows": rows})


def written_rows(script: str) -> list[dict[str, str]]:
    """Return the rows that `write_row` has written; none before the first."""
    path = MEASURED / f"{Path(script).stem}.json"
    rows: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return rows


def commit() -> str:
    """Return the commit of this tree, `-dirty` behind it where files differ; UNKNOWN_COMMIT where git has none.

    Pages and figures do not count: a script that writes one row after the other changes them itself.
    """
    try:
        changed = git("diff", "--name-only", "HEAD", "--", ".", ":!docs")
        return git("describe", "--always") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_COMMIT


def git(*words: str) -> str:
    """Return what git answers about this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def checked_out(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder, and return it."""
    git("archive", "--output", str(folder / "tree.tar"), commit)
    subprocess.run(["tar", "-xf", "tree.tar"], cwd=folder, check=True)
    return folder


def _plain(figure: Figure) -> dict[str, object]:
    content = asdict(figure)
    content["value"] = _rounded(figure.value)
    if figure.interval is None:
        del content["interval"], content["interval_kind"]
    else:
        content["interval"] = [_rounded(each) for each in figure.interval]
    return content


def _rounded(value: float) -> float:
    """Return `value` with three significant digits, or all digits before the point."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.3g}")
