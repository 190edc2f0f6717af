"""Appends a line to `steps.jsonl` for each training step, evaluation or sample, and reads the lines back."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.basics.files import no_link
from efficientbench.basics.foreign import parse_json, read_whole

MOST_BYTES = 1 << 34
"""Largest size of one run's lines: some 50 million steps."""


class StepLog:
    """Appends lines; a line is in the file when `write` returns, so that a killed run loses at most the last one.

    A torn last line, which a killed run may leave, is cut off when the file is opened again.

    Raises:
        MetricsError: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with os_errors_as(MetricsError, f"{path}: cannot be opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", 0, opener=no_link)  # noqa: SIM115, held until `close`
            _cut_torn_line(path)

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one line.

        Args:
            kind: 'step', 'evaluation', 'rollouts', 'sample' or 'lost', written under the key `kind`.
            values: names with units, such as step, loss, learning_rate, grad_norm, step_time_s, tokens. A number
                that is not finite is written as null, with its name and text under `not_finite`.
        """
        numbers = {name: value for name, value in values.items() if isinstance(value, float)}
        not_finite = {name: str(number) for name, number in numbers.items() if not math.isfinite(number)}
        line = {"kind": kind, **values, **dict.fromkeys(not_finite)}
        if not_finite:
            line["not_finite"] = not_finite
        content = json.dumps(line, allow_nan=False).encode() + b"\n"
        with os_errors_as(MetricsError, f"{self._path}: cannot be written"):
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return all lines of the file, in order; skip a torn last line.

    Raises:
        MetricsError: no such file, or a damaged line that is not the last; the message gives its number.
    """
    lines, damage = _whole_lines(path)
    if damage is not None:
        raise MetricsError(f"{path}, {damage}")
    return [values for _, values in lines]


def cut_steps(path: Path, step: int) -> str | None:
    """Cut the file off after step `step`, or before its first damaged line, for a run that resumes there.

    Returns:
        A message on what the damage lost; None if nothing was lost, or without a file.

    Raises:
        MetricsError: the file cannot be read or written.
    """
    if not path.exists():
        return None
    lines, damage = _whole_lines(path)
    kept_bytes, last_step = 0, 0
    for line, values in lines:
        if values["kind"] == "quality" or values.get("step", 0) > step:
            damage = None  # it lies after the lines that stay
            break
        kept_bytes += len(line) + 1
        last_step = values.get("step", last_step)
    with os_errors_as(MetricsError, f"{path}: cannot be written"):
        os.truncate(path, kept_bytes)
    return None if damage is None else f"{path.name}, {damage}: its lines after step {last_step:,} are lost"


def time_lost(path: Path, elapsed_s: float) -> float:
    """Return how long earlier attempts worked beyond the state from which the run goes on, s.

    `path`: the file, not yet cut; of an attempt that logged no step nothing is known. `elapsed_s`: the elapsed time of
    that state; 0 for step 1. Raises MetricsError: the file cannot be read.
    """
    lines = _whole_lines(path)[0] if path.exists() else []
    elapsed = (values["elapsed_s"] for _, values in reversed(lines) if isinstance(values.get("elapsed_s"), float))
    return max(0.0, next(elapsed, 0.0) - elapsed_s)


def keep_lost(log: StepLog, step: int, lost_s: float, elapsed_s: float) -> None:
    """Keep in a file that was cut after `step` what `time_lost` has found there; `elapsed_s`: as given to that.

    Else the time of an attempt that is killed before its first step would be the last that the file knows.

    Raises MetricsError: the file cannot be written.
    """
    if lost_s:
        log.write("lost", {"step": step, "lost_s": lost_s, "elapsed_s": elapsed_s + lost_s})


def _whole_lines(path: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], str | None]:
    """Return each intact line with its values, up to the first damaged one, and its damage; None without damage."""
    with os_errors_as(MetricsError, f"{path}: cannot be read"):
        lines = read_whole(path, MOST_BYTES).split(b"\n")
    whole: list[tuple[bytes, dict[str, Any]]] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is empty or torn
        try:
            values = parse_json(line)
        except ValueError as error:
            return whole, f"line {number}: damaged, it is no JSON ({error})"
        known = isinstance(values, dict) and isinstance(values.get("kind"), str)
        if not known or type(values.get("step", 0)) is not int:
            return whole, f"line {number}: damaged, it has no kind, or a step that is no number"
        whole.append((line, values))
    return whole, None


def _cut_torn_line(path: Path) -> None:
    # Read no empty file: /dev/full never ends.
    content = read_whole(path, MOST_BYTES) if path.stat().st_size else b""
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
