"""Reads and writes what a run's folder holds: records as JSON files with a checksum, and files of one name below it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from efficientbench.basics.checksum import check_checksum, with_checksum
from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_json, plain_text, plain_texts, read_whole
from efficientbench.metrics.files import write_whole

# The parts are dataclasses that others build unchecked: without `revalidate_instances` a record could hold a NaN, which
# its reader would refuse.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, revalidate_instances="always")
SKIPPED_FOLDERS = ("previous", "profile")
"""Folders beside a run's record that readers skip: replaced attempts, and a run that tracing slowed."""
Read = TypeVar("Read")
AnyRecord = TypeVar("AnyRecord", bound="Stored")


class Stored(BaseModel):
    """A record of one kind, which a run's folder holds as a JSON file."""

    model_config = STRICT
    file_name: ClassVar[str]
    kind_of_file: ClassVar[str]
    """What the file is, with its article, for messages."""

    @model_validator(mode="before")
    @classmethod
    def _texts_are_plain(cls, content: Any) -> Any:
        """Remove from every text what a terminal would obey: reports print the texts."""
        return plain_texts(content)

    def write(self, path: Path) -> None:
        """Write the record as JSON. Raises MetricsError, and keeps an existing record, if it cannot be written."""
        content = with_checksum(self.model_dump(mode="json"))
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(path, text + "\n")

    @classmethod
    def read(cls: type[AnyRecord], path: Path) -> AnyRecord:
        """Read a record.

        Raises:
            MetricsError: the file is missing, no JSON, no record, or fails its checksum; the message names the file and
                every wrong key.
        """
        try:
            content = read_whole(path)
            record = cls.model_validate_json(content)
            check_checksum(parse_json(content))
        except OSError as error:
            raise MetricsError(f"{path}: cannot be read ({error.strerror})") from None
        except ValidationError as error:
            raise MetricsError(f"{path}: {cls.readable(error)}") from None
        except ValueError as error:
            raise MetricsError(f"{path}: {error}") from None
        return record

    @classmethod
    def load(cls: type[AnyRecord], folder: Path) -> tuple[list[AnyRecord], list[str]]:
        """Read all records of this kind below a folder; skip those of replaced and traced runs.

        Returns:
            The records by run and start, and a message for each file that cannot be read as one.
        """
        records, damaged = read_each(current_files(folder, cls.file_name), cls.read)
        return sorted(records, key=attrgetter("run", "started_at")), damaged

    @classmethod
    def readable(cls, error: ValidationError) -> str:
        """Return all errors of a validation in one line, by key."""
        found = {".".join(map(str, item["loc"])): item for item in error.errors()}
        version, first = found.get("schema_version"), error.errors()[0]
        if version is not None:
            reads = cls.model_fields["schema_version"].default
            return f"written in schema version {version['input']}; this program reads {reads}"
        if first["type"] == "json_invalid":
            return f"damaged, it is no JSON ({first['ctx']['error']})"
        messages = []
        for where, item in found.items():
            near = get_close_matches(where, list(cls.model_fields), 1) if item["type"] == "extra_forbidden" else []
            hint = f" (did you mean {near[0]}?)" if near else ""
            messages.append((f"{where}: " if where else "") + item["msg"].removeprefix("Value error, ") + hint)
        return f"not {cls.kind_of_file}: {'; '.join(messages)}"


def current_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files below a folder that a name or a pattern matches, sorted; skip those below SKIPPED_FOLDERS."""
    found = sorted(folder.rglob(pattern))
    return [path for path in found if not set(SKIPPED_FOLDERS) & set(path.relative_to(folder).parts)]


def read_each(paths: Iterable[Path], read: Callable[[Path], Read]) -> tuple[list[Read], list[str]]:
    """Return what `read` returns for each file, and the message of each file for which it raises MetricsError."""
    found, damaged = [], []
    for path in paths:
        try:
            found.append(read(path))
        except MetricsError as error:
            damaged.append(plain_text(str(error)))
    return found, damaged


def iso_time(text: str) -> str:
    """Return an ISO 8601 time in a form that Python 3.10 reads too, which knows no Z. Raises ValueError: it is none."""
    time = f"{text[:-1]}+00:00" if text.endswith("Z") else text
    try:
        datetime.fromisoformat(time)
    except ValueError:
        raise ValueError(f"{text!r} is no time in ISO 8601, such as 2026-01-02T03:04:05+00:00") from None
    return time
