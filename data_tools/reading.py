"""Documents of a `.bin/.idx` pair, one at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.indexed import bin_path, idx_path, map_index


class IndexedDocuments:
    """A pair's documents by their number: `IndexedDocuments(prefix)[5]` is an array of tokens, [its length].

    Both files are mapped: opening them reads a header, and a document costs the few pages that it lies on, however
    many others there are. The pair is taken for whole: `check_indexed` finds what is not.

    Raises:
        DataError: a file is missing, or its header is not that of a pair.
    """

    def __init__(self, prefix: Path) -> None:
        if not bin_path(prefix).is_file() or not idx_path(prefix).is_file():
            raise DataError(f"{prefix}: a tokenized corpus is two files, {prefix.name}.bin and {prefix.name}.idx")
        self.prefix = prefix
        self.dtype, self._lengths, self._pointers, self._starts = map_index(idx_path(prefix))
        self._bin = np.memmap(bin_path(prefix), dtype=np.uint8, mode="r")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> np.ndarray:
        if not 0 <= number < len(self):
            raise IndexError(f"document {number:,}: {self.prefix} has {len(self):,}, counted from 0")
        first, end = int(self._starts[number]), int(self._starts[number + 1])
        parts = [self._sequence(index) for index in range(first, end)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, self.dtype), *parts])

    def lengths(self) -> np.ndarray:
        """The tokens of each document, int64 [documents]."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lengths, dtype=np.int64)])
        return np.diff(ends[self._starts])

    def _sequence(self, index: int) -> np.ndarray:
        begin = int(self._pointers[index])
        return self._bin[begin : begin + int(self._lengths[index]) * self.dtype.itemsize].view(self.dtype)
