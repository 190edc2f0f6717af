"""Show the progress of a sweep: a live table on a terminal, elsewhere a line for each event."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from efficientbench.basics.counted import seconds
from efficientbench.basics.foreign import open_regular, parse_json, plain_text
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.queue import State

TAIL_BYTES = 8192
"""Bytes at the end of `steps.jsonl` that are searched for its last step."""


@dataclass(frozen=True)
class Running:
    """A row of the live table: one running run."""

    id: str
    elapsed_s: float
    step: tuple[int, float] | None
    """The last step and its loss; None before the first."""
    steps: int | None


class Display:
    """Prints a line for each event of a run, and on a terminal draws a live table of all runs."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._counts: Counter[str] = Counter()
        self._begin_s = time.monotonic()
        self._timed: list[float] = []
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        if self._live:
            self._live.start()

    @property
    def live(self) -> bool:
        """Whether there is a terminal to draw the table on."""
        return self._live is not None

    def print(self, text: str) -> None:
        """Print one line, which stays above the table."""
        self._console.print(Text(text), soft_wrap=True)
        self._console.file.flush()

    def kept(self, state: State) -> None:
        """Count and print a run that is not started: complete, refused, or failed before and not retried."""
        self._count(state, "complete, kept" if state.state == "done" else state.state)

    def started(self, state: State) -> None:
        """Print that a run starts."""
        again = f", attempt {state.attempts}" if state.attempts > 1 else ""
        self.print(f"{state.id}: started{again}")

    def ended(self, state: State, elsewhere: bool = False) -> None:
        """Count and print a run that ended, here or in another sweep."""
        if state.duration_s is not None and not elsewhere:
            self._timed.append(state.duration_s)
        took = f" in {seconds(state.duration_s)}" if state.duration_s is not None else ""
        self._count(state, f"{state.state}{' by another sweep' if elsewhere else ''}{took}")

    def show(self, running: Sequence[Running], left: int) -> None:
        """Redraw the live table; do nothing without a terminal."""
        if self._live is None:
            return
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for each in running:
            step = f"step {each.step[0]:,}" if each.step else "starting"
            of = f" of {each.steps:,}" if each.step and each.steps else ""
            loss = f"loss {each.step[1]:.3f}" if each.step else ""
            table.add_row(Text(each.id), step + of, loss, seconds(int(each.elapsed_s)))
        ended = sum(self._counts.values())
        counted = ", ".join(f"{count} {name}" for name, count in self._counts.items())
        elsewhere = left and not running
        waits = "; the rest is with another sweep" if elsewhere else ""
        summary = f"{ended} of {self._total} ended{f' ({counted})' if counted else ''}{waits}"
        whole = Table.grid(padding=(0, 2, 0, 0))
        elapsed = seconds(int(time.monotonic() - self._begin_s))
        whole.add_row(ProgressBar(self._total, ended, width=24), summary, elapsed, self._remaining(len(running), left))
        self._live.update(Group(table, whole), refresh=True)

    def close(self) -> None:
        """Remove the live table from the terminal."""
        if self._live:
            self._live.stop()

    def _count(self, state: State, text: str) -> None:
        self._counts[state.state] += 1
        why = f" ({state.kind}): {' '.join(plain_text(state.reason or '').split())}" if state.kind else ""
        self.print(f"[{sum(self._counts.values())}/{self._total}] {state.id}: {text}{why}")

    def _remaining(self, running: int, left: int) -> str:
        if not self._timed or not left + running:
            return ""
        mean_s = sum(self._timed) / len(self._timed)
        return f"about {seconds(mean_s * (left + running / 2) / max(running, 1))} left"


def last_step(folder: OutputFolder, since_s: float) -> tuple[int, float] | None:
    """Return the last step that a run has finished, and its training loss; None before the first.

    A file that was last written before `since_s` (seconds since the epoch) is an earlier attempt's.
    """
    try:
        with open_regular(folder.steps) as file:
            if os.fstat(file.fileno()).st_mtime < since_s - 1:
                return None
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines(keepends=True)
    except OSError:
        return None
    for line in reversed(lines):
        try:
            content = parse_json(line) if line.endswith("\n") else {}
            if content.get("kind") == "step":
                return int(content["step"]), math.nan if content["loss"] is None else float(content["loss"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return None
