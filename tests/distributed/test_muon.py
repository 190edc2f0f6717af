"""What Muon keeps on each rank, against the formulas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.configs import tiny
from support.ranks import Ranks
from support.tiny_training import tiny_training

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.memory import memory_by_stage

pytestmark = pytest.mark.proof

TP_SP = ["parallel.tp=2", "parallel.sp=true"]
CELLS = {
    "TP 2": ("gqa_1.5B", ["parallel.tp=2"]),
    "MLA, TP 2": ("mla_1.5B", ["parallel.tp=2", "model.attention.q_lora_rank=20"]),
    "NSA, TP 2": ("nsa_1.5B", ["parallel.tp=2"]),
    "more ranks than groups": ("mqa_1.5B", ["parallel.tp=2"]),
    "two tables on two stages": ("nanochat_d12", ["parallel.pp=2"]),
    "experts, TP 2 with SP": ("moe_1.5Bx8", TP_SP),
    "EP 2": ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2"]),
    "EP 2 x TP 2 with SP": ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2", *TP_SP]),
}


def kept_bytes(config: RunConfig, prefix: Path) -> tuple[int, int]:
    """Return the bytes of momentum and of AdamW's moments on this rank after two steps."""
    with tiny_training(config, prefix, 2) as trainer:
        trainer.train(lambda: False)
        kept = [
            (name, value.numel() * value.element_size())
            for part in trainer.optimizer.chained_optimizers
            for state in part.optimizer.state.values()
            for name, value in state.items()
        ]
    momentum = sum(size for name, size in kept if name == "momentum")
    return momentum, sum(size for name, size in kept if name in ("exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize("cell", CELLS)
def test_memory_of_muon_matches_the_formulas(cell: str, ranks: Callable[[int], Ranks], corpus: Path) -> None:
    name, overrides = CELLS[cell]
    # A vocabulary that needs no padding, of which the formula of the whole model knows nothing.
    config = tiny(name, f"data.cache={corpus.parent}", "training.optimizer=muon", "model.vocab_size=132", *overrides)
    layout = Layout.of(config, devices=1, oversubscribe=True)
    found = ranks(layout.world_size).call(kept_bytes, config, corpus)
    stages = memory_by_stage(config, layout, runtime_bytes=0)
    per_stage = layout.world_size // layout.pp
    for rank, kept in enumerate(found):
        stage = stages[rank // per_stage]
        assert kept == (stage.muon_momentum, stage.adam_moments)
