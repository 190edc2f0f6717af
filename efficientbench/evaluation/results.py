"""The results of a task on disk: one line an item, appended, and a summary when all are there."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.basics.files import no_link
from efficientbench.basics.foreign import parse_json
from efficientbench.evaluation.task import ItemResult, Summary, Task
from efficientbench.metrics.records.evaluation import read_evaluation, write_evaluation
from efficientbench.metrics.records.record_parts import TrainingScore

FOLDER = "evaluation"
"""Of a run's folder: `<task>.jsonl` and `<task>.json`."""
FORMAT = 1
"""Of `<task>.jsonl`."""
MOST_BYTES = 1 << 32
"""Of a file of results, which is read as a whole."""
_SCORE = TypeAdapter(TrainingScore)
logger = logging.getLogger(__name__)


class ResultFile:
    """`<task>.jsonl`: a header that says what was evaluated, then the results of items; open while the block runs.

    A header that differs begins the file anew, since the items were another checkpoint's or were given otherwise. What
    a killed evaluation has written stays, up to a line that was not written whole.

    Raises:
        ConfigError: another process is writing it.
        MetricsError: it cannot be read or written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Take the path, and all that decides the results, as JSON."""
        self.path = path
        # As a file gives it back: a tuple becomes a list.
        self.header: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **header}))
        self.results: dict[str, ItemResult] = {}
        """By the names of items: those in the file."""
        self.replaced: dict[str, Any] | None = None
        """The header of earlier results, which are discarded; None where there were none."""

    def __enter__(self) -> ResultFile:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", opener=no_link)
        except OSError as error:
            raise MetricsError(f"{self.path}: cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(f"{self.path}: another evaluation is writing it; wait until that has ended") from None
        kept = self._read()
        self._file.truncate(kept)
        if kept == 0:
            self._write([self.header])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, results: Sequence[ItemResult]) -> None:
        """Write results to the disk."""
        self._write([_line(result) for result in results])
        self.results.update((result.item, result) for result in results)

    def _write(self, values: Sequence[Mapping[str, Any]]) -> None:
        try:
            self._file.write("".join(json.dumps(value, allow_nan=False) + "\n" for value in values).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise MetricsError(f"{self.path}: cannot be written ({error.strerror})") from None

    def _read(self) -> int:
        """Take over the results of the same evaluation; return the bytes of the file that stay."""
        size_bytes = self._file.seek(0, os.SEEK_END)
        if size_bytes > MOST_BYTES:
            self._file.close()
            raise MetricsError(
                f"{self.path}: it has {size_bytes:,} bytes, and {MOST_BYTES:,} are the most that is read"
            )
        self._file.seek(0)
        kept = 0
        for number, line in enumerate(self._file.read().split(b"\n")[:-1]):
            try:
                value = parse_json(line)
                if number == 0:
                    if value != self.header:
                        self.replaced = value if isinstance(value, dict) else {}
                        return 0
                else:
                    result = _result(value)
                    self.results[result.item] = result
            except (ValueError, KeyError, TypeError):
                break
            kept += len(line) + 1
        return kept


def _line(result: ItemResult) -> dict[str, Any]:
    values = asdict(result)
    return {**values.pop("details"), **values}


def _result(value: dict[str, Any]) -> ItemResult:
    fields = ("item", "prompt_sha256", "answer", "right")
    own = {name: value[name] for name in fields}
    if not isinstance(own["item"], str) or not isinstance(own["right"], bool | None):
        raise TypeError
    losses = value["losses"]
    details = {name: content for name, content in value.items() if name not in (*fields, "losses")}
    return ItemResult(**own, losses=None if losses is None else tuple(losses), details=details)


def summary_of(task: Task, results: Mapping[str, ItemResult], kept: Path | None) -> Summary:
    """Return a task's summary.

    Args:
        task: It makes the summary.
        results: of all items, by their names.
        kept: the file that an earlier call has written some of them to; None where all are new.

    Raises:
        MetricsError: a result of that file lacks what the task needs.
    """
    try:
        summary = task.summary(results)
        if not all(value is None or math.isfinite(value) for value in summary.figures.values()):
            raise ValueError("a figure is not finite")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if kept is None:
            raise
        raise MetricsError(
            f"{kept}: a line is damaged ({type(error).__name__}: {error}); remove the file, and all is computed again"
        ) from None
    return summary


def write_summary(path: Path, header: Mapping[str, Any], items: int, summary: Summary) -> None:
    """Write `<task>.json`.

    Raises MetricsError: it cannot be written.
    """
    write_evaluation({**header, "items": items, **asdict(summary)}, path)


def read_scores(folder: Path) -> list[TrainingScore]:
    """Return the figures of every summary in a folder, in the order of steps; the log names files that are none."""
    found = []
    for path in sorted(folder.glob("*.json")):
        # A file that somebody has damaged must not cost a record.
        try:
            found.append(_SCORE.validate_python(read_evaluation(path)))
        except ValidationError as error:
            logger.warning("%s: cannot be read (%s): it is left out", path, error.errors()[0]["msg"])
        except MetricsError as error:
            logger.warning("%s: it is left out", error)
    return sorted(found, key=lambda each: (each.step, each.task))
