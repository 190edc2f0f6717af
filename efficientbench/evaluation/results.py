"""A task's results on disk: one appended line per item, and once all items are scored a summary, which is published.

A summary goes into its own file, the run's record and TensorBoard.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from efficientbench.basics.errors import ConfigError, MetricsError, os_errors_as
from efficientbench.basics.files import no_link
from efficientbench.basics.foreign import parse_json
from efficientbench.basics.language import in_users_language
from efficientbench.evaluation.task import ItemResult, Summary, Task
from efficientbench.metrics.records.evaluation import read_evaluation, write_evaluation
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.records.record_parts import TrainingScore
from efficientbench.metrics.records.sinks.tensorboard import TensorBoardLog
from efficientbench.running.output_folder import OutputFolder

FOLDER = "evaluation"
"""The folder of `<task>.jsonl` and `<task>.json` in a run's folder."""
FORMAT = 1
"""The format version of `<task>.jsonl`."""
MOST_BYTES = 1 << 32
"""The largest file of results that is read; it is read into memory."""
_SCORE = TypeAdapter(TrainingScore)
logger = logging.getLogger(__name__)


class ResultFile:
    """`<task>.jsonl`: a header that says what was evaluated, then a line per item; open while the block runs.

    If the header on disk differs, the file starts anew: its results are of another checkpoint or other settings. The
    lines of a killed evaluation are kept, up to the first damaged line.

    Raises:
        ConfigError: another process is writing the file.
        MetricsError: the file cannot be written, or is too large to read.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Take the file's path, and all that decides the results as JSON values."""
        self.path = path
        # As read back from a file: a tuple becomes a list.
        self.header: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **header}))
        self.results: dict[str, ItemResult] = {}
        """The results in the file, by the items' names."""
        self.replaced: dict[str, Any] | None = None
        """The header of the results that were discarded; None if none were."""

    @property
    def differences(self) -> str:
        """What the discarded results are of, where that is not what is asked, like `limit 5 (now none)`."""
        before, now = _flat(self.replaced or {}), _flat(self.header)
        names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
        return ", ".join(f"{name} {_shown(before.get(name))} (now {_shown(now.get(name))})" for name in names)

    def __enter__(self) -> ResultFile:
        with os_errors_as(MetricsError, f"{self.path}: cannot be written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", opener=no_link)
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

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, results: Sequence[ItemResult]) -> None:
        """Append results to the file, and flush them to the disk."""
        self._write([_line(result) for result in results])
        self.results.update((result.item, result) for result in results)

    def _write(self, values: Sequence[Mapping[str, Any]]) -> None:
        with os_errors_as(MetricsError, f"{self.path}: cannot be written"):
            self._file.write("".join(json.dumps(value, allow_nan=False) + "\n" for value in values).encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read the results of the same evaluation; return how many bytes of the file to keep."""
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


def _flat(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header's values, with those of its settings among them."""
    settings = header.get("settings")
    return {**header, "settings": None, **(settings if isinstance(settings, dict) else {})}


def _shown(value: Any) -> str:
    return "none" if value is None else value[:80] if isinstance(value, str) else json.dumps(value)[:80]


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
        task: the task, which computes the summary.
        results: the results of all items, by name.
        kept: the file from which some results were read; None if all are new.

    Raises:
        MetricsError: a result in that file is damaged.
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

    Raises MetricsError: the file cannot be written.
    """
    write_evaluation({**header, "items": items, **asdict(summary)}, path)


def read_scores(folder: Path) -> list[TrainingScore]:
    """Return the scores of every summary in a folder, in the order of steps; skip and log unreadable files."""
    found = []
    for path in sorted(folder.glob("*.json")):
        # A damaged summary must not cost the run its record.
        try:
            found.append(_SCORE.validate_python(read_evaluation(path)))
        except ValidationError as error:
            logger.warning("%s: skipped: cannot be read (%s)", path, error.errors()[0]["msg"])
        except MetricsError as error:
            logger.warning("%s: skipped", error)
    return sorted(found, key=lambda each: (each.step, each.task))


def publish(folder: Path, header: Mapping[str, Any], items: int, summary: Summary, console: Console) -> None:
    """Write `evaluation/<task>.json`, the run's record and TensorBoard's scalars, and print the figures.

    Args:
        folder: the run's folder.
        header: `task`, `step`, and everything else that decides the results.
        items: the number of the task's items.
        summary: the summary of these items.
        console: prints the figures.

    Raises:
        MetricsError: a file cannot be written.
    """
    task = header["task"]
    write_summary(folder / FOLDER / f"{task}.json", header, items, summary)
    _put_into_record(folder, console)
    log = TensorBoardLog(OutputFolder(folder).tensorboard)
    log.scalars("step", header["step"], {f"evaluation/{task}/{name}": value for name, value in summary.figures.items()})
    log.close()
    for name, value in summary.figures.items():
        shown = f"n/a: {summary.unavailable[name]}" if value is None else f"{value:.6g}"
        console.print(f"{task}: {name} {shown}", highlight=False)


def _put_into_record(folder: Path, console: Console) -> None:
    """Put the evaluations into the run's record, if there is one; an unfinished or imported run has none."""
    path = OutputFolder(folder).record
    if not path.exists():
        return
    try:
        record = read_record(path)
        write_record(record.model_copy(update={"evaluations": read_scores(folder / FOLDER)}), path)
    except MetricsError as error:
        # For example a record of another version, which this version does not read.
        console.print(in_users_language(f"warning: the evaluation was not added to the record: {error}"))
