"""Finished parts put together: the pair, and the list of what could not be used."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from efficientbench.data_tools.files import BLOCK_BYTES, FileChecksums, write_blocks
from efficientbench.data_tools.indexed import bin_path, idx_path, index_blocks
from efficientbench.data_tools.inputs import Part
from efficientbench.data_tools.parts import PartCounts, part_lengths, part_rejects


def beside(path: Path, what: str) -> Path:
    """The path of something that lies beside a pair, or beside a file."""
    return path.with_name(f"{path.name}.{what}")


def merge_pair(folder: Path, counts: Sequence[PartCounts], prefix: Path, dtype: np.dtype) -> dict[str, FileChecksums]:
    """Write the pair from its parts; give the checksums of both files, under `bin` and `idx`."""
    numbers = range(len(counts))

    def lengths() -> Iterator[np.ndarray]:
        return (part_lengths(folder, number) for number in numbers)

    def tokens() -> Iterator[bytes]:
        for number in numbers:
            with (folder / f"{number:06}.bin").open("rb") as stream:
                while block := stream.read(BLOCK_BYTES):
                    yield block

    documents = sum(count.documents for count in counts)
    blocks = {bin_path(prefix): tokens(), idx_path(prefix): index_blocks(lengths, documents, dtype)}
    written = {}
    partial = [beside(path, "partial") for path in blocks]
    try:
        for path, target in zip(partial, blocks, strict=True):
            written[target.suffix[1:]] = write_blocks(path, blocks[target])
        for path, target in zip(partial, blocks, strict=True):
            os.replace(path, target)
    finally:
        for path in partial:
            path.unlink(missing_ok=True)
    return written


def merge_rejects(folder: Path, parts: Sequence[Part], counts: Sequence[PartCounts], path: Path) -> str | None:
    """Write the list of what could not be used to `path`, with lines counted in the whole files; give its first."""
    first = None
    lines: Counter[Path] = Counter()  # of each file, in the parts before
    partial = beside(path, "partial")
    try:
        with partial.open("w") as stream:
            for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
                for reject in part_rejects(folder, number):
                    line = lines[part.path] + reject.line
                    first = first or f"{part.path}:{line}: {reject.detail}"
                    row = {"file": str(part.path.absolute()), "line": line, "reason": reject.reason}
                    stream.write(json.dumps({**row, "detail": reject.detail}) + "\n")
                lines[part.path] += count.lines
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return first
