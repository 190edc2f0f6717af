"""Show the progress of a sweep: a live table on a terminal, elsewhere a line for each event and run and minute."""

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
from efficientbench.basics.language import in_users_language
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.queue import State

TAIL_BYTES = 8192
"""Bytes at the end of `steps.jsonl` that are searched for its last steps."""
LINE_EACH_S = 60.0
"""How often a running run has a line where there is no terminal."""


@dataclass(frozen=True)
class Progress:
    """How far a run is, by the end of its `steps.jsonl`."""

    step: int
    loss: float
    """The step's training loss, nats; NaN where it was not finite."""
    tokens_per_s: float | None
    """Mean speed over the steps at the file's end; None where there is one step alone."""
    step_s: float | None
    """Mean time from one of these steps to the next, seconds."""

    def words(self, steps: int | None) -> list[str]:
        """Return the step, of so many, its speed, its loss and the time left, each as text; empty where unknown."""
        left_s = None if steps is None or self.step_s is None else (steps - self.step) * self.step_s
        return [
            f"step {self.step:,}" + (f" of {steps:,}" if steps else ""),
            "" if self.tokens_per_s is None else f"{self.tokens_per_s:,.0f} tokens/s",
            f"loss {self.loss:.3f}",
            "" if left_s is None or left_s <= 0 else f"about {seconds(left_s)} left",
        ]


@dataclass(frozen=True)
class Running:
    """A row of the live table: one running run."""

    id: str
    elapsed_s: float
    progress: Progress | None
    """None before the first step."""
    steps: int | None

    def words(self) -> list[str]:
        """Return the row's texts after its name: how far the run is, and for how long it has run."""
        known = ["starting", "", "", ""] if self.progress is None else self.progress.words(self.steps)
        return [*known, seconds(int(self.elapsed_s))]


class Display:
    """Prints a line for each event of a run, and on a terminal draws a live table of all runs."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._counts: Counter[str] = Counter()
        self._first_with: dict[tuple[str, str], str] = {}
        """Kind and reason of a failure → the first run that has been printed with it."""
        self._begin_s = time.monotonic()
        self._timed: list[float] = []
        self._last_lines_s = self._begin_s
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        if self._live:
            self._live.start()

    @property
    def due(self) -> bool:
        """Whether `show` has something to do: always on a terminal, elsewhere once a minute."""
        return self._live is not None or time.monotonic() - self._last_lines_s >= LINE_EACH_S

    def print(self, text: str) -> None:
        """Print one line, which stays above the table."""
        self._console.print(Text(in_users_language(text)), soft_wrap=True)
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
        """Redraw the live table; without a terminal, print a line for each running run."""
        if self._live is None:
            self._last_lines_s = time.monotonic()
            for each in running:
                self.print(f"{each.id}: {', '.join(filter(None, each.words()))}")
            return
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for each in running:
            table.add_row(Text(each.id), *each.words())
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
        why = f" ({state.kind}): {self._reason(state.kind, state)}" if state.kind else ""
        self.print(f"[{sum(self._counts.values())}/{self._total}] {state.id}: {in_users_language(text)}{why}")

    def _reason(self, kind: str, state: State) -> str:
        """Return why a run failed; of a reason that is printed already, the run that it is printed with."""
        reason = " ".join(plain_text(state.reason or "").split())
        first = self._first_with.setdefault((kind, reason), state.id)
        return reason if first == state.id else in_users_language(f"the same as {first}")

    def _remaining(self, running: int, left: int) -> str:
        if not self._timed or not left + running:
            return ""
        mean_s = sum(self._timed) / len(self._timed)
        return f"about {seconds(mean_s * (left + running / 2) / max(running, 1))} left"


def progress_of(folder: OutputFolder, since_s: float = 0.0) -> Progress | None:
    """Return how far a run is; None before its first step.

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
    # Of one attempt: its clock starts at 0.
    found: list[tuple[int, float, float, float]] = []
    for step in filter(None, map(_step, lines)):
        found = [*([] if found and step[0] != found[-1][0] + 1 else found), step]
    if not found:
        return None
    (first, _, tokens_before, begin_s), (last, loss, tokens, end_s) = found[0], found[-1]
    passed_s = end_s - begin_s
    if last == first or not passed_s > 0:
        return Progress(last, loss, None, None)
    speed = (tokens - tokens_before) / passed_s
    return Progress(last, loss, None if math.isnan(speed) else speed, passed_s / (last - first))


def _step(line: str) -> tuple[int, float, float, float] | None:
    """Return a line's step, its loss, the tokens so far and the attempt's seconds; None: it is no step's line."""
    try:
        content = parse_json(line) if line.endswith("\n") else {}
        if content.get("kind") != "step":
            return None
        tokens = content.get("tokens_total", content.get("tokens_trained", math.nan))
        loss = math.nan if content["loss"] is None else float(content["loss"])
        return int(content["step"]), loss, float(tokens), float(content.get("elapsed_s", math.nan))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
