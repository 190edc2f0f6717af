"""The formulas of costs/communication.py against what ranks send in a training step, byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.configs import BACKBONE, tiny
from support.ranks import Ranks
from support.sent import Sent, count_step

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import Transfer, micro_batch_transfers, step_transfers
from efficientbench.costs.model import DTYPE_BYTES

TP_SP = ["parallel.tp=2", "parallel.sp=true"]
CELLS = {
    "TP 2": ("gqa_1.5B", ["parallel.tp=2"]),
    "TP 2 with SP": ("gqa_1.5B", TP_SP),
    "PP 2": ("gqa_1.5B", ["parallel.pp=2"]),
    "DP 2": ("gqa_1.5B", ["parallel.dp=2"]),
    "CP 2": ("gqa_1.5B", ["parallel.cp=2"]),
    "EP 2": ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2"]),
}
MORE_CELLS = {
    "DP 2, plain optimizer": ("gqa_1.5B", ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "EP 2, plain optimizer": (
        "moe_1.5Bx8",
        ["parallel.ep=2", "parallel.dp=2", "parallel.distributed_optimizer=false"],
    ),
    "DP 2, bf16": ("gqa_1.5B", ["parallel.dp=2", "training.dtype=bf16"]),
    "PP 2 interleaved": ("gqa_1.5B", ["parallel.pp=2", "parallel.vpp=2", "model.layers=4"]),
    "TP 2, fewer groups than ranks": ("mqa_1.5B", ["parallel.tp=2"]),
    "TP 2 with SP, recomputed": ("gqa_1.5B", [*TP_SP, "training.recompute=full"]),
    "CP 2, attention recomputed": ("gqa_1.5B", ["parallel.cp=2", "training.recompute=selective"]),
    "MLA, TP 2": ("mla_1.5B", ["parallel.tp=2"]),
    "MLA, TP 2 with SP, latent queries": ("mla_1.5B", [*TP_SP, "model.attention.q_lora_rank=20"]),
    "MLA, CP 2": ("mla_1.5B", ["parallel.cp=2"]),
    "NSA, TP 2": ("nsa_1.5B", ["parallel.tp=2"]),
    "experts, TP 2 with SP": ("moe_1.5Bx8", TP_SP),
    "experts, CP 2": ("moe_1.5Bx8", ["parallel.cp=2"]),
    "DP 2, no overlap": ("gqa_1.5B", ["parallel.dp=2", "parallel.overlap=false"]),
    "EP 2, no overlap": ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2", "parallel.overlap=false"]),
    "EP 2 x TP 2 with SP": ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2", *TP_SP]),
    "a table on every stage": ("relative_1.5B", ["parallel.pp=2"]),
    "a table on every tp rank": ("learnable_absolute_1.5B", TP_SP),
    "TP 2 with SP x PP 2": ("gqa_1.5B", [*TP_SP, "parallel.pp=2"]),
    "every key of the backbone, TP 2": ("gqa_1.5B", ["parallel.tp=2", *BACKBONE]),
    "every key of the backbone, TP 2 with SP x PP 2": ("gqa_1.5B", [*TP_SP, "parallel.pp=2", *BACKBONE]),
    "nanochat, TP 2 with SP": ("nanochat_d12", TP_SP),
    "Muon, TP 2": ("gqa_1.5B", ["parallel.tp=2", "training.optimizer=muon"]),
    "Muon, MLA, TP 2, bf16": ("mla_1.5B", ["parallel.tp=2", "training.optimizer=muon", "training.dtype=bf16"]),
    "Muon, experts, TP 2 with SP": ("moe_1.5Bx8", [*TP_SP, "training.optimizer=muon"]),
    "Muon, EP 2": ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2", "training.optimizer=muon"]),
    "Muon, DP 2": ("gqa_1.5B", ["parallel.dp=2", "training.optimizer=muon"]),
}


@pytest.mark.parametrize("cell", [*CELLS, *(pytest.param(cell, marks=pytest.mark.proof) for cell in MORE_CELLS)])
def test_formulas_give_what_is_sent(cell: str, ranks: Callable[[int], Ranks], corpus: Path) -> None:
    name, overrides = (CELLS | MORE_CELLS)[cell]
    config = tiny(name, f"data.cache={corpus.parent}", *overrides)
    layout = Layout.of(config, devices=1, oversubscribe=True)
    sent = ranks(layout.world_size).call(count_step, config, corpus)
    counted: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for rank in sent:
        counted += rank.payload_bytes
        for transfer in micro_batch_transfers(config, layout, rank.stage):
            expected[transfer.operation] += layout.micro_batches * transfer.payload_bytes
        for transfer in step_transfers(config, layout, rank.stage):
            expected[transfer.operation] += transfer.payload_bytes
        expected += padding(rank, config, layout)
    assert counted == expected


def padding(rank: Sent, config: RunConfig, layout: Layout) -> Counter[str]:
    """The buffers' padding, which the formulas leave out, as the real buffers have it."""
    if not config.parallel.distributed_optimizer:
        return Counter()
    gathers = 2 if layout.ep > 1 and not config.parallel.overlap else 1
    return Counter(
        {
            "reduce-scatter": 4 * rank.padding_elements,
            "all-gather": gathers * DTYPE_BYTES[config.training.dtype] * rank.padding_elements,
        }
    )


@pytest.mark.parametrize(
    ("operation", "sent"),
    [("all-reduce", 150), ("all-gather", 75), ("reduce-scatter", 75), ("all-to-all", 75), ("send", 100)],
)
def test_a_ring_of_four_sends(operation: str, sent: float) -> None:
    assert Transfer("", operation, "tp", 100).sent_bytes(4) == sent
