"""The search over layouts: what it ranks exists, fits and is as fast as it says; what is fastest comes first."""

from __future__ import annotations

import shlex
import time
from itertools import product

import pytest
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.costs.rank_grid import Group, RankGrid, Span
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.planning.cluster_plan import layout_of_world
from efficientbench.planning.plan import make_plan
from efficientbench.planning.search import Search, search, words_of
from efficientbench.planning.step_time import project

BATCH = "training.global_batch_size=64"
KINDS: tuple[Group, ...] = ("tp", "cp", "tp × cp", "dp", "ep", "expert dp", "pp", "embedding", "world")


def searched(name: str, world: int, device: str, *overrides: str) -> Search:
    config = resolve(name, overrides=(BATCH, *overrides))
    return search(config, world, 8, device, {override.partition("=")[0] for override in overrides})


@pytest.mark.parametrize(("name", "world", "device"), [("gqa_3B", 16, "A100 80GB SXM"), ("moe_0.5Bx8", 8, "H100 SXM")])
def test_the_fastest_layout_is_projected_alike_by_plan_and_none_is_faster(name: str, world: int, device: str) -> None:
    found = searched(name, world, device)
    best, rates = found.ranked[0], device_rates(device, "bf16")
    plain = resolve(name, overrides=(BATCH,))
    fused = best.config.kernels.fused

    def step_s(*words: str) -> float | None:
        """Plan the words as `plan --world` does; None where they do not fit."""
        config = resolve(name, overrides=(BATCH, *words, f"kernels.fused={str(fused).lower()}"))
        config, layout = layout_of_world(config, world, 8)
        plan = make_plan(config, layout, best_runtime)
        fits = plan.rank_memory_bytes() <= (rates.memory_bytes or 0)
        return project(config, layout, rates).step_time_s if fits else None

    best_runtime = 1_500_000_000
    assert step_s(*words_of(best.config, plain)) == pytest.approx(best.projection.step_time_s)
    tried = 0
    for tp, pp, size, recompute in product((1, 2, 8), (1, 2), (1, 2, 4), ("none", "full")):
        words = (f"tp={tp}", f"parallel.sp={str(tp > 1).lower()}", f"pp={pp}", f"mbs={size}")
        try:
            other_s = step_s(*words, f"training.recompute={recompute}")
        except ConfigError:
            continue
        if other_s is not None:
            tried += 1
            assert best.projection.step_time_s <= other_s * 1.01, words
    assert tried >= 5


def test_found_layouts_fit_and_are_in_order_of_speed() -> None:
    found = searched("gqa_3B", 8, "A100 40GB")
    keys = [(-float(f"{each.tokens_per_s:.3g}"), each.layout.tp, each.layout.pp) for each in found.ranked]
    assert keys == sorted(keys)
    assert len(found.ranked) == 10
    for each in found.ranked:
        assert each.memory_bytes <= 40e9
        assert 0 <= each.exposed_s < each.projection.step_time_s


def test_only_layouts_that_do_not_fit_recompute_activations() -> None:
    found = searched("gqa_3B", 8, "A100 40GB", "parallel.tp=1", "parallel.cp=1", "training.micro_batch_size=8")
    again = [each for each in found.ranked if each.config.training.recompute != "none"]
    assert again
    for each in again:
        for recompute in ("none", "selective")[: ("selective", "full").index(each.config.training.recompute) + 1]:
            training = each.config.training.model_copy(update={"recompute": recompute})
            milder = make_plan(each.config.model_copy(update={"training": training}), each.layout, 1_500_000_000)
            assert milder.rank_memory_bytes() > 40e9


def test_more_recomputation_is_never_faster() -> None:
    rates = device_rates("H100 SXM", "bf16")
    for tp, cp, dp in ((1, 1, 8), (4, 2, 1), (2, 1, 4)):
        words = (BATCH, f"tp={tp}", f"cp={cp}", f"dp={dp}")
        times = []
        for recompute in ("none", "selective", "full"):
            config = resolve("gqa_3B", overrides=(*words, f"training.recompute={recompute}"))
            times.append(project(config, Layout.of(config, 8), rates).step_time_s)
        assert times == sorted(times)


def test_overridden_keys_do_not_change_in_the_search() -> None:
    found = searched("gqa_3B", 16, "H100 SXM", "parallel.tp=4", "parallel.sp=false", "training.micro_batch_size=2")
    for each in found.ranked:
        parallel = each.config.parallel
        assert (parallel.tp, parallel.sp, each.config.training.micro_batch_size) == (4, False, 2)


@pytest.mark.parametrize(
    ("name", "world", "device", "overrides", "why"),
    [
        ("gqa_32B", 1, "RTX 4090", (), "nothing fits on 1 rank of RTX 4090: a rank needs at least "),
        ("gqa_0.5B", 8, "V100 SXM2", ("training.dtype=fp16",), "the memory of V100 SXM2 does not follow"),
        ("gqa_0.5B", 16, "L40S", (), "what the network of a node of L40S carries"),
        ("gqa_0.5B", 12, "H100 SXM", (), "12 ranks are not whole nodes of 8: 8 or 16 would be"),
        ("gqa_0.5B", 8, "H100 SXM", ("parallel.tp=4",), "no layout works on 8 ranks of H100 SXM"),
    ],
)
def test_a_search_without_a_result_gives_the_reason(
    name: str, world: int, device: str, overrides: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        searched(name, world, device, *overrides)


def test_the_printed_command_works() -> None:
    runner = CliRunner()
    asked = ["plan", "gqa_1.5B", "gbs=64", "mbs=1", "--world", "16", "--device", "h100 sxm", "--search"]
    printed = runner.invoke(app, asked)
    assert printed.exit_code == 0, printed.output
    assert "range of the first: " in printed.stdout
    (command,) = [line for line in printed.stdout.splitlines() if line.startswith("the first: ")]
    words = shlex.split(command.removeprefix("the first: efficientbench "))
    assert words[:4] == ["launch", "gqa_1.5B", "gbs=64", "mbs=1"]
    assert words[-6:] == ["--to", "slurm", "--nodes", "2", "--devices-per-node", "8"]
    launched = runner.invoke(app, words)
    assert launched.exit_code == 0, launched.output
    assert "#SBATCH --nodes=2" in launched.stdout


@pytest.mark.proof
@pytest.mark.alone
@pytest.mark.parametrize("name", ["gqa_32B", "moe_1.5Bx8"])
def test_a_search_over_a_thousand_ranks_takes_less_than_20_s_of_cpu_time(name: str) -> None:
    begin_s = time.process_time()
    found = searched(name, 1024, "H100 SXM", "training.global_batch_size=4096")
    assert time.process_time() - begin_s < 20
    assert found.fitting > 100


def test_a_search_needs_a_device_and_assumes_a_usual_machine_of_it() -> None:
    refused = CliRunner().invoke(app, ["plan", "gqa_0.5B", "--search", "--world", "8"])
    assert refused.exit_code == 2
    assumed = CliRunner().invoke(app, ["plan", "gqa_0.5B", "--search", "--device", "H100 SXM"])
    assert assumed.stdout.startswith("assumed: 8 x H100 SXM; ")


def test_the_span_of_a_group_by_shape_matches_that_of_its_ranks() -> None:
    tried = 0
    for tp, cp, pp, dp, ep in product((1, 2, 3, 8), (1, 2), (1, 2, 3), (1, 4, 6), (1, 2, 4)):
        world = tp * cp * pp * dp
        if cp * dp % ep:
            continue
        for nodes in (each for each in (1, 2, 3, 6) if world % each == 0):
            tried += 1
            grid = RankGrid(Layout(world, nodes, tp, False, cp, pp, 1, dp, ep, 1, 1))
            for kind in KINDS:
                reached = []
                for group in grid.groups(kind):
                    on_nodes = [rank // (world // nodes) for rank in group]
                    reached.append((len(set(on_nodes)), -min(map(on_nodes.count, on_nodes))))
                most, fewest = max(reached)
                assert grid.span(kind) == Span(len(grid.groups(kind)[0]), most, -fewest), (kind, grid.layout)
    assert tried > 300
