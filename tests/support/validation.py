"""The validation batches of a run, from the files on disk and the order's definition, without Megatron or our code.

Order: the validation split's documents, shuffled by `numpy.random.RandomState(1234)` and laid end to end, are cut into
sequences that share one token with the next, and these are shuffled by the same generator.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
VALIDATION_SEED = 1234


def read_documents(prefix: Path) -> list[np.ndarray]:
    """The documents of a `.bin/.idx` pair."""
    index = Path(f"{prefix}.idx").read_bytes()
    magic, version, dtype, sequences, _ = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + 4 * sequences)
    tokens = Path(f"{prefix}.bin").read_bytes()
    return [
        np.frombuffer(tokens, DTYPES[dtype], length, pointer) for length, pointer in zip(lengths, pointers, strict=True)
    ]


def validation_sequences(run: Path) -> np.ndarray:
    """[sequences, seq_len + 1] int64: what each validation of a run of one source reads."""
    job: dict[str, Any] = json.loads((run / "config.json").read_text())
    config = job["config"]
    manifest = Path(job["corpora"][0])
    prefix = manifest.parent / json.loads(manifest.read_text())["prefix"]
    documents = read_documents(prefix)
    split = np.cumsum(config["data"]["split"]) / sum(config["data"]["split"])
    begin, end = (round(len(documents) * float(part)) for part in split[:2])
    random = np.random.RandomState(VALIDATION_SEED)
    order = np.arange(begin, end, dtype=np.int32)
    random.shuffle(order)
    stream = np.concatenate([documents[number] for number in order]).astype(np.int64)
    length = config["training"]["seq_len"]
    starts = np.arange((len(stream) - 1) // length)
    random.shuffle(starts)
    count = config["training"]["validation_batches"] * config["training"]["global_batch_size"]
    assert count <= len(starts), "more than one epoch of the validation split"
    return np.stack([stream[start * length : (start + 1) * length + 1] for start in starts[:count]])
