"""The validation text of a run, from the files on disk and its definition, without Megatron or our code.

Documents are in the order of the first eight bytes, little-endian, of BLAKE2b of their tokens. Those whose text occurs
more than once are passed over. Of each, at most a sixteenth of `training.validation_tokens` are targets; the last one
is cut where their number is reached. A document is cut into pieces that share one token with the next.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


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


def validation_documents(run: Path) -> list[np.ndarray]:
    """The documents that each validation of a run of one source scores, int64, as far as it does."""
    job: dict[str, Any] = json.loads((run / "config.json").read_text())
    config = job["config"]
    manifest = Path(job["corpora"][0])
    documents = read_documents(manifest.parent / json.loads(manifest.read_text())["prefix"])
    keys = [hashlib.blake2b(document.tobytes(), digest_size=8).digest()[::-1] for document in documents]
    occurrences = Counter(keys)
    ordered = sorted((key, number) for number, key in enumerate(keys) if occurrences[key] == 1)
    split = np.cumsum(config["data"]["split"]) / sum(config["data"]["split"])
    count = round(len(documents) * float(split[1])) - round(len(documents) * float(split[0]))
    wanted = config["training"]["validation_tokens"]
    found: list[np.ndarray] = []
    for _, number in ordered[:count]:
        left = wanted - sum(len(document) - 1 for document in found)
        document = documents[number].astype(np.int64)[: min(wanted // 16, left) + 1]
        if len(document) > 1:
            found.append(document)
    return found


def validation_pieces(run: Path) -> list[np.ndarray]:
    """The same, cut at the run's sequence length: tokens of a piece, the first of which is no target."""
    length = json.loads((run / "config.json").read_text())["config"]["training"]["seq_len"]
    return [
        document[first : first + length + 1]
        for document in validation_documents(run)
        for first in range(0, len(document) - 1, length)
    ]
