"""The formulas of costs/communication.py against what ranks send in a training step, byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from support.configs import ATTENTIONS, ENCODINGS, EVERY_KEY, FINE, Models, chosen, has_matrices, has_table, tiny_model
from support.ranks import Ranks
from support.sent import Sent, count_step

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.config.combination_table import problems
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import Transfer, micro_batch_transfers, step_transfers
from efficientbench.doctor.variant.cases import LAYOUTS, overrides_of

TP_SP = ["parallel.tp=2", "parallel.sp=true"]
PLAIN = "parallel.distributed_optimizer=false"
MUON = "training.optimizer=muon"
EXPERTS = ["parallel.ep=2", "parallel.dp=2"]
CELLS = {
    "TP 2": ("gqa", ["parallel.tp=2"]),
    "TP 2 with SP": ("gqa", TP_SP),
    "PP 2": ("gqa", ["parallel.pp=2"]),
    "DP 2": ("gqa", ["parallel.dp=2"]),
    "CP 2": ("gqa", ["parallel.cp=2"]),
    "EP 2": ("moe", EXPERTS),
}


def of_variants(models: Models, layouts: Iterable[str], *overrides: str) -> dict[str, tuple[str, list[str]]]:
    """Return a cell for each model in each of these LAYOUTS that it supports."""
    return {
        ", ".join((name, layout, *overrides)): (name, [*overrides_of(LAYOUTS[layout]), *overrides])
        for layout in layouts
        for name in chosen(models, lambda config, keys=LAYOUTS[layout]: not problems(config, keys))
    }


MORE_CELLS = {
    **of_variants(ATTENTIONS, ["tensor parallel", "sequence parallel", "context parallel"]),
    # A table is on one tp rank or on each, on one stage or on each.
    **of_variants({name: ENCODINGS[name] for name in chosen(ENCODINGS, has_table)}, ["sequence parallel", "pipeline"]),
    **of_variants({name: ATTENTIONS[name] for name in chosen(ATTENTIONS, has_matrices)}, ["tensor parallel"], MUON),
    "DP 2, plain optimizer": ("gqa", ["parallel.dp=2", PLAIN]),
    "EP 2, plain optimizer": ("moe", [*EXPERTS, PLAIN]),
    "DP 2, bf16": ("gqa", ["parallel.dp=2", "training.dtype=bf16"]),
    "PP 2 interleaved": ("gqa", ["parallel.pp=2", "parallel.vpp=2", "model.layers=4"]),
    "TP 2 with SP, recomputed": ("gqa", [*TP_SP, "training.recompute=full"]),
    "CP 2, attention recomputed": ("gqa", ["parallel.cp=2", "training.recompute=selective"]),
    "experts, TP 2 with SP": ("moe", TP_SP),
    "experts, CP 2": ("moe", ["parallel.cp=2"]),
    "experts over sequences, CP 2": ("moe", ["parallel.cp=2", "model.moe.auxiliary_over=sequence"]),
    "experts over the global batch, TP 2 with SP": ("moe", [*TP_SP, "model.moe.auxiliary_over=global"]),
    "shared experts, TP 2 with SP": (FINE, TP_SP),
    "shared experts, EP 2 x TP 2 with SP": (FINE, [*EXPERTS, *TP_SP]),
    "shared experts, EP 2, Muon": (FINE, [*EXPERTS, MUON]),
    "DP 2, no overlap": ("gqa", ["parallel.dp=2", "parallel.overlap=false"]),
    "EP 2, no overlap": ("moe", [*EXPERTS, "parallel.overlap=false"]),
    "EP 2 x TP 2 with SP": ("moe", [*EXPERTS, *TP_SP]),
    "TP 2 with SP x PP 2": ("gqa", [*TP_SP, "parallel.pp=2"]),
    "every key of the backbone, TP 2": (EVERY_KEY, ["parallel.tp=2"]),
    "every key of the backbone, TP 2 with SP x PP 2": (EVERY_KEY, [*TP_SP, "parallel.pp=2"]),
    "nanochat, TP 2 with SP": ("nanochat", TP_SP),
    "Muon, MLA, TP 2, bf16": ("mla", ["parallel.tp=2", MUON, "training.dtype=bf16"]),
    "Muon, experts, TP 2 with SP": ("moe", [*TP_SP, MUON]),
    "Muon, EP 2": ("moe", [*EXPERTS, MUON]),
    "Muon, DP 2": ("gqa", ["parallel.dp=2", MUON]),
}


@pytest.mark.parametrize("cell", [*CELLS, *(pytest.param(cell, marks=pytest.mark.proof) for cell in MORE_CELLS)])
def test_formulas_match_the_bytes_sent(cell: str, ranks: Callable[[int], Ranks], corpus: Path) -> None:
    name, overrides = (CELLS | MORE_CELLS)[cell]
    config = tiny_model(name, f"data.cache={corpus.parent}", *overrides)
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
def test_formulas_match_the_bytes_of_a_ring_of_four(operation: str, sent: float) -> None:
    assert Transfer("", operation, "tp", 100).sent_bytes(4) == sent
