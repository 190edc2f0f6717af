"""Records which files of a folder are downloaded and verified, in `.download/record` (JSON)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import write_file
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.data_tools.download.listing import Listing, RemoteFile
from efficientbench.data_tools.download.transfer import has_content

STATE_FOLDER = ".download"


@dataclass
class Record:
    """The download state of one folder."""

    folder: Path
    repository: str
    """The dataset or model whose files the folder contains."""
    listings: dict[str, Listing] = field(default_factory=dict)
    """The last listing of each request, by configuration, revision, number of files and split, or by a model's file
    patterns."""
    finished: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Checksum, size in bytes and modification time in ns of each verified file, by path."""
    format_version: Literal[1] = 1
    """The version of the record's format; a record of another version is ignored."""

    def holds(self, file: RemoteFile) -> bool:
        """Return whether the folder has the file with the right content; read it if the record lacks it."""
        path = self.folder / file.path
        if not path.is_file():
            return False
        stat = path.stat()
        if self.finished.get(file.path) == (file.checksum, stat.st_size, stat.st_mtime_ns):
            return stat.st_size == file.size_bytes
        if not has_content(path, file):
            return False
        self.add(file)
        return True

    def add(self, file: RemoteFile) -> None:
        """Record that a file is complete and verified."""
        stat = (self.folder / file.path).stat()
        self.finished[file.path] = (file.checksum, stat.st_size, stat.st_mtime_ns)
        self.save()

    def save(self) -> None:
        """Write the record."""
        write_file(_path(self.folder), _RECORD.dump_json(self, indent=1, exclude={"folder"}))


_RECORD = TypeAdapter(Record)


def load_record(folder: Path, repository: str) -> Record:
    """Read the record of a folder; return an empty one if there is none, or it is damaged.

    Raises:
        DataError: the folder contains another repository's files.
    """
    try:
        record = _RECORD.validate_python({**parse_json(read_whole(_path(folder))), "folder": folder})
    except (OSError, ValueError, TypeError):
        return Record(folder, repository)  # the files are read and checked again
    if record.repository != repository:
        raise DataError(f"{folder} holds files of {record.repository}: choose another folder for {repository}")
    return record


def _path(folder: Path) -> Path:
    return folder / STATE_FOLDER / "record"
