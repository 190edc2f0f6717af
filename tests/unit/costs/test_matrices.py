"""Memory and FLOPs of Muon by hand, on one rank and on several."""

from __future__ import annotations

import pytest

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.costs.communication import step_transfers
from efficientbench.costs.compute import optimizer_work
from efficientbench.costs.matrices import muon_flops
from efficientbench.costs.memory import RankMemory, memory_by_stage

MUON = "training.optimizer=muon"
Q, KV, GATE = 896 * 896, 128 * 896, 896 * 4864
LAYER = 2 * Q + 2 * KV + 3 * GATE
"""Of the size 0.5B: Q and output, K and V, gate, up and down."""


def memory_of(name: str, *overrides: str) -> tuple[RankMemory, ...]:
    config = resolve(name, overrides=overrides)
    return memory_by_stage(config, Layout.of(config, devices=1, oversubscribe=True), runtime_bytes=0)


def test_a_matrix_keeps_half_of_adams_states_and_every_replica_has_them_all() -> None:
    (adamw,), (muon,) = memory_of("gqa_0.5B"), memory_of("gqa_0.5B", MUON)
    assert muon.muon_momentum == 24 * LAYER * 4
    assert adamw.adam_moments - muon.adam_moments == 2 * muon.muon_momentum
    assert (adamw.muon_momentum, adamw.master_weights) == (0, muon.master_weights)
    assert memory_of("gqa_0.5B", MUON, "parallel.dp=2")[0].muon_momentum == muon.muon_momentum
    assert memory_of("gqa_0.5B", MUON, "parallel.tp=2")[0].muon_momentum == muon.muon_momentum // 2
    stages = memory_of("gqa_0.5B", MUON, "parallel.pp=2")
    assert [stage.muon_momentum for stage in stages] == [muon.muon_momentum // 2] * 2


def test_ranks_share_experts_by_either_way() -> None:
    (one,) = memory_of("moe_0.5Bx8", MUON)
    assert one.muon_momentum == 24 * (2 * Q + 2 * KV + 8 * 3 * GATE) * 4
    (shared,) = memory_of("moe_0.5Bx8", MUON, "parallel.ep=2", "parallel.dp=2")
    (split,) = memory_of("moe_0.5Bx8", MUON, "parallel.tp=2", "parallel.sp=true")
    assert one.muon_momentum - shared.muon_momentum == 24 * 4 * 3 * GATE * 4
    assert split.muon_momentum == one.muon_momentum // 2


def test_the_update_needs_memory_where_there_are_few_activations() -> None:
    short = ["training.seq_len=16", "kernels.loss_block_logits=1"]
    (adamw,), (muon,) = memory_of("moe_0.5Bx8", *short), memory_of("moe_0.5Bx8", *short, MUON)
    # Gate and up of eight experts: five times in float32.
    assert muon.activations + muon.workspace == 8 * 2 * GATE * 5 * 4
    assert adamw.workspace < muon.workspace


def test_flops_of_an_update() -> None:
    """2 m² n + 2 m³ + 2 m² n for a matrix, five times, by every rank that shares it."""

    def step(m: int, n: int) -> int:
        return 2 * m * m * n + 2 * m**3 + 2 * m * m * n

    expected = 24 * 5 * (2 * step(896, 896) + 2 * step(128, 896) + 3 * step(896, 4864))
    for layout in ([], ["parallel.tp=2"], ["parallel.dp=2"]):
        config = resolve("gqa_0.5B", overrides=[MUON, *layout])
        grid = Layout.of(config, devices=1, oversubscribe=True)
        assert muon_flops(config, grid) == expected
        assert [work.flops for work in optimizer_work(config, grid, 0)] == [0, expected]


@pytest.mark.parametrize(("dtype", "element_bytes"), [("bf16", 2), ("fp32", 4)])
def test_tensor_parallel_ranks_gather_whole_matrices(dtype: str, element_bytes: int) -> None:
    def gathered(*overrides: str) -> list[float]:
        config = resolve("gqa_0.5B", overrides=[MUON, f"training.dtype={dtype}", *overrides])
        transfers = step_transfers(config, Layout.of(config, devices=1, oversubscribe=True), 0)
        return [each.payload_bytes for each in transfers if each.purpose == "Muon: matrices"]

    assert gathered("parallel.tp=2") == [24 * LAYER * element_bytes]
    assert gathered("parallel.dp=2") == []
