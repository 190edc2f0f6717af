"""Verification of a corpus's tokens in the blocks that a rank reads, in the thread that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.gpt_dataset import GPTDataset

from efficientbench.data_tools.intact import BlockReader


class VerifiedReader:
    """Megatron's reader of one `.bin`, which verifies each block that it reads."""

    def __init__(self, reader: Any, blocks: BlockReader) -> None:
        self._reader, self._blocks = reader, blocks

    def read(self, dtype: type[np.number], count: int, offset: int) -> np.ndarray:
        """Return `count` tokens from byte `offset`, [count]. Raises DataError for a block that is damaged."""
        tokens: np.ndarray = self._reader.read(dtype=dtype, count=count, offset=offset)
        self._blocks.verify(int(offset), int(offset) + tokens.nbytes)
        return tokens


def verify_reads(samples: GPTDataset | BlendedDataset, blocks: Mapping[Path, BlockReader]) -> None:
    """Let `samples` verify the tokens that they read of the corpora in `blocks`, which are named by their prefix."""
    for source in samples.datasets if isinstance(samples, BlendedDataset) else [samples]:
        pair = source.dataset
        if Path(pair.path_prefix) in blocks:
            pair.bin_reader = VerifiedReader(pair.bin_reader, blocks[Path(pair.path_prefix)])
