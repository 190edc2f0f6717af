"""What Weights & Biases keeps of an offline run, read back from its file.

`run-ID.wandb` is a log as LevelDB writes it, in blocks of 32 KiB, whose records are protocol buffers. The package has
no reader of it in Python.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK_BYTES, HEADER_BYTES = 32_768, 7
FULL, FIRST, _, LAST = range(1, 5)
"""Whether a piece is a whole record, or which part of one."""


@dataclass
class Sent:
    """One run of Weights & Biases."""

    name: str = ""
    group: str = ""
    project: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """What was logged, call by call."""
    summary: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    """Scalar → the scalar that it is drawn over."""
    exit_code: int | None = None
    """None: the run has not ended."""

    def scalars(self, name: str, axis: str = "step") -> list[tuple[int, float]]:
        """Return the values of a scalar, with their places on an axis."""
        return [(row[axis], row[name]) for row in self.rows if name in row]


def offline_runs(folder: Path) -> list[Sent]:
    """Return the runs below the folder of a run, the oldest first."""
    return [read(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]


def read(path: Path) -> Sent:
    """Return what a file holds; checksums are verified."""
    from wandb.proto.wandb_internal_pb2 import Record

    sent = Sent()
    for content in _records(path.read_bytes()):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            sent.name, sent.group, sent.project = run.display_name, run.run_group, run.project
            sent.settings |= _values(run.config.update)
        elif kind == "config":
            sent.settings |= _values(record.config.update)
        elif kind == "history":
            sent.rows.append(_values(record.history.item))
        elif kind == "summary":
            sent.summary |= _values(record.summary.update)
        elif kind == "metric" and record.metric.name:
            sent.axes[record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            sent.exit_code = record.exit.exit_code
    return sent


def _values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    assert content.startswith(b":W&B")
    place, record = HEADER_BYTES, b""
    while place + HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER_BYTES:
            place += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", content, place)
        place += HEADER_BYTES
        piece = content[place : place + length]
        assert zlib.crc32(piece, zlib.crc32(bytes([kind]))) == checksum
        place += length
        record = piece if kind in (FULL, FIRST) else record + piece
        if kind in (FULL, LAST):
            yield record
