"""Blocks of tokens are verified as batches read them: each once, and no batch is made of a damaged one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.cells import write_tokens
from support.configs import tiny

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import BLOCK_BYTES, file_checksums
from efficientbench.data_tools.tokens.indexed import bin_path
from efficientbench.data_tools.tokens.intact import BlockReader

pytestmark = pytest.mark.usefixtures("single_rank")

STEPS = 20
UINT16 = np.dtype(np.uint16), 131
"""Of the tokens, and their vocabulary."""


@pytest.fixture
def prefixes(tmp_path: Path) -> list[Path]:
    """Two pairs of more than four blocks; no token of one occurs in the other."""
    random = np.random.default_rng(0)
    prefixes = [tmp_path / "first", tmp_path / "second"]
    for number, prefix in enumerate(prefixes):
        write_tokens(prefix, [random.integers(60 * number + 1, 60 * number + 60, 2500) for _ in range(1000)])
    return prefixes


def read(prefixes: list[Path], verified: list[BlockReader], cache: Path) -> torch.Tensor:
    """The training batches of a blend, [steps * batches, sequences, tokens], and a validation batch's at the end."""
    from efficientbench.training.data.batches import Batches
    from efficientbench.training.data.sample_index import Vocabulary

    blend = ",".join(f"1,{prefix}" for prefix in prefixes)
    config = tiny("gqa_1.5B", f"data.path=[{blend}]", f"data.cache={cache}")
    blocks = dict(zip(prefixes, verified, strict=False))
    batches = Batches(config, STEPS, prefixes, Vocabulary(131, 0, {"name": "tiny"}), torch.device("cpu"), blocks)
    steps = [batches.training_step(step) for step in range(1, STEPS + 1)]
    return torch.stack([batch.tokens for step in (*steps, batches.validation_step()) for batch in step])


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_block_stops_the_run_that_reads_it(prefixes: list[Path], tmp_path: Path, number: int) -> None:
    tokens = [bin_path(prefix) for prefix in prefixes]
    recorded = [file_checksums(path) for path in tokens]

    def readers() -> list[BlockReader]:
        return [
            BlockReader(path, each, tmp_path / "m.json", *UINT16) for path, each in zip(tokens, recorded, strict=True)
        ]

    whole = read(prefixes, [], tmp_path / "cache")
    assert torch.equal(read(prefixes, readers(), tmp_path / "cache"), whole)
    content = bytearray(tokens[number].read_bytes())
    content[::BLOCK_BYTES] = bytes(byte ^ 1 for byte in content[::BLOCK_BYTES])
    tokens[number].write_bytes(content)
    with pytest.raises(DataError, match=rf"{tokens[number].name}: bytes [\d,]+ to [\d,]+: not what .* in .*m\.json"):
        read(prefixes, readers(), tmp_path / "cache")


def test_a_block_is_verified_once(prefixes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientbench.data_tools.tokens import intact

    checked: list[int] = []
    crc32 = intact.zlib.crc32
    monkeypatch.setattr(intact.zlib, "crc32", lambda content: checked.append(len(content)) or crc32(content))
    tokens = bin_path(prefixes[0])
    recorded = file_checksums(tokens)
    checked.clear()
    read(prefixes, [BlockReader(tokens, recorded, tmp_path / "m.json", *UINT16)], tmp_path / "cache")
    # Shuffled documents of 5,000 bytes: 21 batches of them come from every block.
    assert sum(checked) == recorded.size_bytes
