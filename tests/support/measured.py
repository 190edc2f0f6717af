"""Figures that the benchmark scripts measure, written for the docs to docs/measured/<script>.json."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from support.repository import ROOT

from efficientbench.devices.base import Device
from efficientbench.metrics.files import write_whole

MEASURED = ROOT / "docs" / "measured"


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


def add_write(parser: argparse.ArgumentParser) -> None:
    """Add `--write` to a benchmark's options."""
    parser.add_argument("--write", action="store_true", help="write the figures to docs/measured for the docs")


def write_measured(script: str, device: Device, figures: dict[str, Figure], conditions: str) -> None:
    """Write the figures of `script` (its `__file__`), measured on `device`, with machine, commit and date."""
    write_content(script, device, {"conditions": conditions, "figures": {k: _plain(f) for k, f in figures.items()}})


def write_content(script: str, device: Device, content: dict[str, object]) -> None:
    """Write `content` beside what every file states: script, machine, software, commit and date."""
    import torch

    path = Path(script).resolve()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    cores = f"{len(os.sched_getaffinity(0))} cores of " if device.type == "cpu" else ""
    about = {
        "script": str(path.relative_to(ROOT)),
        "machine": f"{cores}{device.names()[0]}",
        "software": f"torch {torch.__version__}",
        "commit": commit,
        "date": datetime.date.today().isoformat(),
    }
    target = MEASURED / f"{path.stem}.json"
    write_whole(target, json.dumps(about | content, indent=2, ensure_ascii=False) + "\n")
    print(f"{target}: now run python docs/generate.py")


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
