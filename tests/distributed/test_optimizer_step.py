"""A step is queued whole: the host reads the device once, after the update, and the values are megatron's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.configs import tiny
from support.host_reads import reads_of_a_step
from support.norms import norms_beside_megatrons
from support.ranks import Ranks

Pool = Callable[[int], Ranks]


@pytest.mark.parametrize(
    ("size", "overrides"),
    [
        (1, ["training.dtype=fp32"]),
        (1, ["training.dtype=bf16"]),
        (1, ["training.dtype=bf16", "training.gradient_clip=0"]),
        (1, ["training.dtype=bf16", "parallel.distributed_optimizer=false"]),
        (2, ["training.dtype=bf16", "parallel.dp=2"]),
        (2, ["parallel.pp=2"]),
        (2, ["parallel.tp=2", "parallel.sp=true"]),
    ],
)
def test_the_host_reads_once_and_after_the_update(size: int, overrides: list[str], ranks: Pool, corpus: Path) -> None:
    config = tiny("gqa_1.5B", f"data.cache={corpus.parent}", *overrides)
    for reads in ranks(size).call(reads_of_a_step, config, corpus):
        assert reads.before_update == []
        # What is read of the copy is the host's own.
        assert [read.split()[0] for read in reads.after_update].index("cpu") == 0
        assert sum(read.startswith("cpu ") for read in reads.after_update) == 1


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gqa_1.5B", ["parallel.tp=2", "parallel.sp=true"]),
        ("gqa_1.5B", ["parallel.pp=2", "training.dtype=bf16"]),
        ("gqa_1.5B", ["parallel.dp=2"]),
        ("gqa_1.5B", ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
        ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2"]),
        ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2", "parallel.distributed_optimizer=false"]),
    ],
)
def test_the_norm_is_megatrons(name: str, overrides: list[str], ranks: Pool, corpus: Path) -> None:
    config = tiny(name, f"data.cache={corpus.parent}", *overrides)
    outcomes = ranks(2).call(norms_beside_megatrons, config, corpus, 3)
    for norms in outcomes:
        assert norms == outcomes[0]
        for ours, megatrons in norms:
            assert ours == pytest.approx(megatrons, rel=1e-6)
