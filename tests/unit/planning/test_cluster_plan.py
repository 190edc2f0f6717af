"""Plans for a cluster: the grid, the parameters of every stage, the projection, and what is refused."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support import outside
from support.alone import engine_groups, peak_memory_bytes
from support.printed import on_one_line
from typer.testing import CliRunner

import efficientbench
from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.cli.app import app
from efficientbench.config.load import resolve
from efficientbench.config.matrix import by_name, load_matrix
from efficientbench.costs.communication import micro_batch_transfers
from efficientbench.costs.compute import micro_batch_work
from efficientbench.costs.memory import rank_experts, rank_parameters
from efficientbench.costs.rank_grid import RankGrid
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.planning.basis import basis
from efficientbench.planning.cluster_plan import ClusterPlan, count_stage_parameters, layout_of_world, make_cluster_plan
from efficientbench.planning.cluster_table import print_cluster_plan
from efficientbench.planning.efficiency import Efficiency, reached
from efficientbench.planning.plan import make_plan
from efficientbench.planning.step_time import (
    bubble_fraction,
    crosses_nodes,
    link_bytes_s,
    project,
    work_time_s,
)

H100 = device_rates("H100 SXM", "bf16")
TP_SP = ("parallel.tp=2", "parallel.sp=true")


@pytest.fixture(scope="module")
def alone() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


def laid_out(name: str, world: int, *overrides: str) -> tuple:
    config = resolve(name, overrides=("training.global_batch_size=1024", *overrides))
    return layout_of_world(config, world, 8)


def planned(*words: str) -> tuple[int, str]:
    """Return exit status and output of `plan`, which counts the engine's parameters in a world of its own."""
    done = CliRunner().invoke(app, ["plan", *words])
    return done.exit_code, done.stdout


def ranks_of(name: str, device: str) -> int:
    """Return the ranks of a plan for a usual machine."""
    return efficientbench.plan(name, device=device).plan.layout.world_size


LAYOUTS = [
    (1, ()),
    (8, TP_SP),
    (8, ("parallel.pp=2",)),
    # Stages that are alike where every fourth of 28 or 36 layers is of another kind.
    (56, ("parallel.pp=7",)),
    (24, ("parallel.pp=3",)),
    (64, ("parallel.tp=4", "parallel.sp=true", "parallel.pp=4")),
    (32, ("parallel.pp=2", "parallel.vpp=2", "parallel.cp=2")),
    (64, (*TP_SP, "parallel.pp=2", "parallel.ep=4")),
    (1024, (*TP_SP, "parallel.pp=4", "parallel.cp=2")),
]


@pytest.mark.proof
@pytest.mark.parametrize(
    "name",
    [name for name, run in by_name(load_matrix().all_runs).items() if run.variant not in ("mid", "sft", "rl")],
)
def test_the_engine_builds_what_the_formula_counts(name: str, alone: ProcessPoolExecutor) -> None:
    tried = 0
    for world, overrides in LAYOUTS:
        try:
            config, layout = laid_out(name, world, *overrides)
        except ConfigError:
            continue  # not every variant divides so
        tried += 1
        formula = [rank_parameters(config, layout, stage) + rank_experts(config, layout) for stage in range(layout.pp)]
        assert alone.submit(count_stage_parameters, config, layout).result() == formula, overrides
    assert tried >= 2


def test_a_plan_allocates_no_weights(alone: ProcessPoolExecutor) -> None:
    config, layout = laid_out("moe_1.5Bx8", 1)
    (parameters,) = alone.submit(count_stage_parameters, config, layout).result()
    assert alone.submit(peak_memory_bytes).result() < 2e9 < parameters


@pytest.mark.parametrize(
    ("name", "world", "overrides"),
    [
        ("gqa_3B", 64, ("parallel.tp=4", "parallel.sp=true", "parallel.cp=2", "parallel.pp=4")),
        ("moe_1.5Bx8", 32, (*TP_SP, "parallel.cp=2", "parallel.pp=2", "parallel.ep=4")),
        ("moe_1.5Bx8", 16, (*TP_SP, "parallel.pp=2")),
    ],
)
def test_groups_match_the_engines(
    name: str, world: int, overrides: tuple[str, ...], alone: ProcessPoolExecutor
) -> None:
    config, layout = laid_out(name, world, *overrides)
    grid = RankGrid(layout)
    for rank in (0, 5, world // 2 + 3, world - 1):
        for kind, ranks in alone.submit(engine_groups, config, layout, rank).result().items():
            assert [group for group in grid.groups(kind) if rank in group] == [tuple(ranks)], (rank, kind)


def test_a_group_spans_the_right_nodes() -> None:
    grid = RankGrid(laid_out("gqa_3B", 1024, "parallel.tp=4", "parallel.pp=4")[1])
    assert grid.span("tp").nodes == 1
    assert (grid.span("dp").size, grid.span("dp").nodes, grid.span("dp").per_node) == (64, 32, 2)
    assert grid.span("pp").nodes == 4
    assert grid.sends_between_nodes(0)
    assert not grid.sends_between_nodes(3)
    # A tensor-parallel group that does not divide a node lies on two of them.
    config = resolve("gqa_3B", overrides=("parallel.tp=4", "training.global_batch_size=60"))
    assert RankGrid(layout_of_world(config, 24, 6)[1]).span("tp").nodes == 2


@pytest.mark.parametrize(("vpp", "fraction"), [(1, 3 / 64), (3, 1 / 64)])
def test_the_bubble_matches_narayanans_formula(vpp: int, fraction: float) -> None:
    config, layout = laid_out("gqa_3B", 64, "parallel.pp=4", f"parallel.vpp={vpp}")
    assert layout.micro_batches == 64
    assert bubble_fraction(layout) == pytest.approx(fraction)
    # Inner stages alone are equal: with no embedding and no loss the projection's bubble is the formula's.
    projection = project(config, layout, H100)
    busy_s = projection.step_time_s - projection.bubble_s
    assert 0 < projection.bubble_s / busy_s < fraction


def test_every_stage_counts_where_nodes_cut_the_pipeline_unevenly() -> None:
    config = resolve("gqa_3B", overrides=("training.global_batch_size=64", "parallel.pp=12"))
    config, layout = layout_of_world(config, 24, 6)
    grid, assumed = RankGrid(layout), reached("H100 SXM", config.model).efficiency
    assert {crosses_nodes(micro_batch_transfers(config, layout, stage)[-1], grid, stage) for stage in range(12)} == {
        False,
        True,
    }

    def micro_batch_s(stage: int) -> float:
        works = micro_batch_work(config, layout, stage).items()
        sent_s = sum(
            each.sent_bytes(grid.span(each.group).size) / (link_bytes_s(each, grid, stage, H100) * assumed.link)
            for each in micro_batch_transfers(config, layout, stage)
        )
        return sum(work_time_s(kind, work, H100, assumed) for kind, work in works) + sent_s

    lengths = [micro_batch_s(stage) for stage in range(12)]
    assert project(config, layout, H100).bubble_s == pytest.approx(sum(lengths) - max(lengths))


def test_the_projection_matches_a_hand_count() -> None:
    """Give a single rank endless memory: only the matrix products at the peak are left."""
    config, layout = laid_out("gqa_1.5B", 1)
    rates = replace(H100, memory_bytes_s=1e30)
    projection = project(config, layout, rates, Efficiency(1, 1, 1, 1))
    # 1024 sequences of 2048 tokens; FLOPs per token as the table of the matrix has them.
    assert projection.step_time_s == pytest.approx(1024 * 2048 * 9_789_898_752 / 989.5e12, rel=1e-6)
    assert projection.bubble_s == 0
    assert projection.communication_s == {}


def test_communication_of_replicas_overlaps_a_micro_batch() -> None:
    config, layout = laid_out("gqa_1.5B", 8)
    exposed = config.model_copy(update={"parallel": config.parallel.model_copy(update={"overlap": False})})
    hidden, open_ = project(config, layout, H100), project(exposed, layout, H100)
    assert hidden.communication_s == open_.communication_s
    assert (open_.hidden_s, hidden.step_time_s) == (0, open_.step_time_s - hidden.hidden_s)
    # 1,543,714,304 parameters are 39 buckets of 40 million; the last one's gradients and the first one's weights wait.
    sent_s = hidden.communication_s["gradients of replicas"] + hidden.communication_s["weights of replicas"]
    assert hidden.hidden_s == pytest.approx(sent_s * 38 / 39)
    # A slow network cannot hide behind one backward pass and one forward pass.
    far = project(config, layout, replace(H100, in_node_bytes_s=1e9))
    micro_batch_s = sum(far.compute_s.values()) - far.compute_s["optimizer"]
    assert far.hidden_s == pytest.approx(micro_batch_s / layout.micro_batches)


def test_fused_kernels_count_only_their_inputs_and_outputs() -> None:
    """Fused kernels neither read nor write intermediate copies, and a lower bound must not count any."""
    plain, layout = laid_out("gqa_1.5B", 1, "training.micro_batch_size=1", "kernels.loss_block_logits=16777216")
    compiled = plain.model_copy(update={"kernels": plain.kernels.model_copy(update={"fused": True})})
    copied, fused = micro_batch_work(plain, layout, 0), micro_batch_work(compiled, layout, 0)
    tokens, bf16, vocabulary = 2048, 2, 151_936
    # SwiGLU: three forward and five backward of 8,960; rotation: in and out, each way, of 14 heads of 128; two sums and
    # their gradients', of which the norm behind the first spares a read forward and two passes backward.
    moved = 28 * tokens * bf16 * (8 * 8960 + 4 * 14 * 128 + 9 * 1536)
    assert fused["elementwise"][0].moved_bytes == moved
    # Softmax: three times read, once written. With a loss scaler the table's gradient waits in a sum of its own.
    assert fused["loss"][1].moved_bytes == tokens * vocabulary * 4 * bf16
    scaled = compiled.model_copy(update={"training": compiled.training.model_copy(update={"dtype": "fp16"})})
    more = micro_batch_work(scaled, layout, 0)["loss"][1].moved_bytes - fused["loss"][1].moved_bytes
    assert more == vocabulary * 1536 * 6 * 4
    assert fused["loss"][1].moved_bytes < copied["loss"][1].moved_bytes
    assert fused["matmuls"] == copied["matmuls"]


def test_a_slower_link_makes_a_longer_step() -> None:
    config, layout = laid_out("gqa_3B", 64, *TP_SP)
    near = project(config, layout, H100)
    far = project(config, layout, replace(H100, between_nodes_bytes_s=5e9))
    assert far.compute_s == near.compute_s
    assert far.communication_s["gradients of replicas"] > 5 * near.communication_s["gradients of replicas"]
    activations = "tensor parallelism: activations"
    assert far.communication_s[activations] == near.communication_s[activations]


def cluster_plan(alone: ProcessPoolExecutor, name: str, world: int, device: str | None, *overrides: str) -> ClusterPlan:
    config = resolve(name, overrides=("training.global_batch_size=1024", *overrides))
    return alone.submit(make_cluster_plan, config, world, 8, device).result()


def test_a_plan_prints_its_figures(alone: ProcessPoolExecutor) -> None:
    cluster = cluster_plan(
        alone, "gqa_3B", 1024, "NVIDIA H100 80GB HBM3", "parallel.tp=8", "parallel.sp=true", "parallel.pp=4"
    )
    text = on_one_line(print_cluster_plan, cluster)
    device_s = cluster.plan.budget.tokens_per_step / cluster.projection.step_time_s / 1024
    for figure in (
        "1,024 ranks = tp 8 × cp 1 × dp 32 × pp 4; 128 nodes of 8",
        f"{cluster.stage_parameters[0]:,}",
        "0, largest",
        "3 / (1 × 32) = 9.4%",
        "projected step on H100 SXM",
        "80.00 GB on the fullest rank: fits",
        "published runs of dense models on H100 SXM: ",
        f"range: {reached('H100 SXM', cluster.plan.config.model).tokens_range(device_s)}",
    ):
        assert figure in text, figure
    # More than a run on a laptop: an accelerator's context.
    assert cluster.plan.memory[0].runtime == 1_800_000_000


def test_undeclared_formulas_of_a_variant_are_absent_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.lay_out(tmp_path, monkeypatch)
    kind = f"model.attention.kind={outside.PACKAGE}.future:VARIANT"
    config, layout = layout_of_world(resolve("gqa_0.5B", smoke=True, overrides=[kind]), 4, 8)
    plan = make_plan(config, layout, runtime_bytes=0)
    cluster = ClusterPlan(plan, RankGrid(layout), (1000,), basis("H100 SXM", config, 4), None, "why not")
    printed = on_one_line(print_cluster_plan, cluster)
    reason = "n/a; model.attention.kind=my_package.future:VARIANT declares no formula for"
    assert f"memory: {reason}" in printed
    assert f"communication: {reason}" in printed


def test_a_plan_without_rates_has_no_time_but_a_reason(alone: ProcessPoolExecutor) -> None:
    for world, device, text in (
        (16, None, "step time: n/a; --device NAME"),
        (16, "L40S", "step time: n/a; what the network of a node of L40S carries"),
        (8, "L40S", "projected step on L40S"),
    ):
        assert text in on_one_line(print_cluster_plan, cluster_plan(alone, "gqa_0.5B", world, device))


@pytest.mark.parametrize(
    ("world", "overrides", "message"),
    [
        (1020, (), "--world: 1020 ranks are not whole nodes of 8: 1016 or 1024 would be"),
        (1024, ("parallel.tp=3",), "1024 ranks are not whole replicas of tp × cp × pp = 3 × 1 × 1 = 3: 1023 or 1026"),
        (1024, ("parallel.tp=2", "parallel.dp=8"), "= 16 ranks, but --world is 1024: leave dp out, or set it to 512"),
        (1, ("parallel.tp=2",), "1 rank is not whole replicas of tp × cp × pp = 2 × 1 × 1 = 2: 2 would be"),
        (4, ("parallel.tp=8",), "4 ranks are not whole replicas of tp × cp × pp = 8 × 1 × 1 = 8: 8 would be"),
        (
            1024,
            ("training.global_batch_size=1000",),
            "1000 is not a multiple of micro_batch_size × dp = 1 × 1024: 1024",
        ),
    ],
)
def test_an_impossible_layout_is_refused_with_possible_ones(
    world: int, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        laid_out("gqa_3B", world, *overrides)


def test_an_unknown_device_is_refused_with_the_nearest_name() -> None:
    config = resolve("gqa_3B")
    with pytest.raises(MetricsError, match="did you mean 'H100 SXM'"):
        make_cluster_plan(config, 8, 8, "H100 SMX")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["gqa_0.5B", "--devices-per-node", "4"], "--devices-per-node goes with --world N"),
        (["gqa_0.5B", "--generate", "--device", "H100", "--devices-per-node", "4"], "--devices-per-node goes with"),
        (["--all", "--device", "H100 SXM"], "--device goes with a NAME, or with --generate"),
    ],
)
def test_cluster_options_need_a_cluster(words: list[str], found: str) -> None:
    refused = CliRunner().invoke(app, ["plan", *words])
    assert refused.exit_code == 2
    assert found in " ".join(refused.stderr.replace("│", " ").split())


@pytest.mark.parametrize(("device", "count"), [("RTX4090", "1 x RTX 4090"), ("h100 sxm", "8 x H100 SXM")])
def test_a_device_alone_is_a_usual_machine_of_it(alone: ProcessPoolExecutor, device: str, count: str) -> None:
    status, text = alone.submit(planned, "gqa_0.5B", "--device", device).result()
    assert status in (0, 1)
    assert text.startswith(f"assumed: {count}; --world N sets how many there are\nwhole budget: ")
    assert f"gqa_0.5B on {count[0]} rank" in text
    _, text = alone.submit(planned, "gqa_0.5B", "--device", device, "--gpus", "2").result()
    assert text.startswith("whole budget: ")
    # From Python too.
    assert alone.submit(ranks_of, "gqa_0.5B", device).result() == int(count.partition(" ")[0])
