"""The progress of an evaluation and the time that is left: a bar on a terminal, a line now and then in a file."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

LINE_INTERVAL_S = 30.0
"""Between two lines in a file."""


class EvaluationProgress:
    """Of one task; the remaining time follows from the cost of the items so far."""

    def __init__(self, task: str, items: int, cost: float, console: Console) -> None:
        """Take the task's name, and how many items are to be scored and at what cost together."""
        self.task, self.items, self.cost, self.console = task, items, cost, console
        self.done, self.done_cost = 0, 0.0
        self.begin_s = self.line_s = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.row = self.bar.add_task(task, total=cost, left="")

    def __enter__(self) -> EvaluationProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bar.stop()

    def add(self, items: int, cost: float) -> None:
        """Count items that have been scored."""
        self.done, self.done_cost = self.done + items, self.done_cost + cost
        now_s = time.monotonic()
        left_s = (now_s - self.begin_s) * (self.cost / self.done_cost - 1)
        text = f"{self.done:,} of {self.items:,} items, {timedelta(seconds=round(left_s))} left"
        self.bar.update(self.row, completed=self.done_cost, left=text)
        if not self.console.is_terminal and now_s - self.line_s >= LINE_INTERVAL_S:
            self.line_s = now_s
            self.console.print(f"{self.task}: {text}")
