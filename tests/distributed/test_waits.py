"""What ranks wait for each other, against time lines of planted work.

A planted pause is work of a known length: the rest of a step is an upper bound on its waits, whatever the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.configs import tiny
from support.quiet import eventually
from support.ranks import Ranks
from support.tiny_training import tiny_training

from efficientbench.config.schema import RunConfig
from efficientbench.devices.cpu import CPU

Pauses = tuple[float, float]
"""Seconds of a stage's forward and backward pass of a micro-batch."""
Seen = tuple[float, float | None, float]
"""Seconds waited within the stage and for others, and those of the step."""


class Paused(torch.autograd.Function):
    """The identity, which takes its time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pauses: Pauses) -> torch.Tensor:
        ctx.pauses = pauses
        time.sleep(pauses[0])
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.pauses[1])
        return gradients[0], None


def second_step(config: RunConfig, prefix: Path, pauses: list[Pauses]) -> Seen:
    """The second step of this rank, each of whose virtual stages has the rank's pauses."""
    from efficientbench.training.waits import Waits

    waits, own = Waits(CPU(), config.parallel.pp), pauses[dist.get_rank()]
    with tiny_training(config, prefix, 2) as trainer, waits.recorded():
        for stage in trainer.stages:

            def paused(*inputs: Any, whole: Callable[..., torch.Tensor] = stage.module.forward, **named: Any) -> Any:
                return Paused.apply(whole(*inputs, **named), own)

            stage.module.forward = paused
        trainer.train_step(1)
        dist.barrier()
        waits.take()
        begin_s = time.perf_counter()
        trainer.train_step(2)
        step_s = time.perf_counter() - begin_s
        return *waits.take(), step_s


@pytest.mark.parametrize(("virtual", "layers"), [(1, 2), pytest.param(2, 4, marks=pytest.mark.proof)])
def test_waits_match_the_bubble_of_a_pipeline(
    virtual: int, layers: int, ranks: Callable[[int], Ranks], corpus: Path
) -> None:
    """1F1B of 2 stages and 2 micro-batches, in units of a forward pass f; B = 2 f.

    stage 0: F1 F2 – – B1 B1 – B2 B2          stage 1: – F1 B1 B1 F2 B2 B2 – –

    Each waits 3 f = (p − 1)(f + B) of 9 f; interleaved, by v stages of 1/v as long, (p − 1)(f + B) / v.
    """
    forward_s, backward_s, micro_batches = 0.1, 0.2, 2
    pauses = [(forward_s / virtual, backward_s / virtual)] * 2
    words = ("parallel.pp=2", f"parallel.vpp={virtual}", f"model.layers={layers}", "training.global_batch_size=4")
    config = tiny("gqa_1.5B", *words)

    def waited(seen: list[Seen]) -> bool:
        assert all(own_s + (across_s or 0) <= step_s - computing_s for own_s, across_s, step_s in seen)
        return all((across_s or 0) >= 0.9 * (forward_s + backward_s) / virtual for _, across_s, _ in seen)

    computing_s = micro_batches * (forward_s + backward_s)
    assert eventually(lambda: ranks(2).call(second_step, config, corpus, pauses), waited)


@pytest.mark.parametrize("overlap", ["true", pytest.param("false", marks=pytest.mark.proof)])
def test_a_slow_rank_keeps_its_replica_waiting(overlap: str, ranks: Callable[[int], Ranks], corpus: Path) -> None:
    pauses, slow_s = [(0.0, 0.0), (0.1, 0.2)], 0.6
    config = tiny("gqa_1.5B", "parallel.dp=2", f"parallel.overlap={overlap}")

    def waited(seen: list[Seen]) -> bool:
        (first_s, none, _), (second_s, _, step_s) = seen
        assert none is None
        assert second_s <= step_s - slow_s
        return first_s >= 0.9 * slow_s

    assert eventually(lambda: ranks(2).call(second_step, config, corpus, pauses), waited)


def behind_computing() -> tuple[float, float, float]:
    """A transfer that its peer joins late, behind computing that takes longer still; then another, behind nothing."""
    from efficientbench.training.waits import Waits

    waits, late, shared = Waits(CPU(), 1), dist.get_rank() == 1, torch.ones(1000)
    with waits.recorded():
        dist.barrier()
        waits.take()
        begin_s = time.perf_counter()
        time.sleep(0.2 * late)
        transfer = dist.all_reduce(shared, async_op=True)
        time.sleep(0.4)
        transfer.wait()
        hidden_s, hidden_of_s = waits.take()[0], time.perf_counter() - begin_s
        dist.barrier()
        waits.take()
        time.sleep(0.2 * late)
        dist.all_reduce(shared)
        return hidden_s, waits.take()[0], hidden_of_s


def test_overlapped_communication_is_no_wait(ranks: Callable[[int], Ranks]) -> None:

    def waited(seen: list[tuple[float, float, float]]) -> bool:
        hidden_s, exposed_s, both_s = seen[0]
        assert hidden_s <= both_s - 0.4
        return exposed_s >= 0.9 * 0.2

    assert eventually(lambda: ranks(2).call(behind_computing), waited)


def names_and_methods() -> tuple[set[str], bool]:
    """What is recorded, and whether torch is as before afterwards."""
    from torch.distributed import ProcessGroup, Work

    from efficientbench.training.waits import Waits

    before = dict(vars(ProcessGroup)), Work.wait
    with Waits(CPU(), 1).recorded():
        changed = {name for name, method in vars(ProcessGroup).items() if method is not before[0][name]}
    return changed, (dict(vars(ProcessGroup)), Work.wait) == before


def test_every_transfer_of_megatron_is_recorded_and_torch_is_restored(
    ranks: Callable[[int], Ranks],
) -> None:
    changed, restored = ranks(2).call(names_and_methods)[0]
    assert restored
    assert {"allreduce", "broadcast", "barrier", "send", "recv", "_end_coalescing"} <= changed
    for renamed in (
        {"_allgather_base", "all_gather_single"},
        {"_reduce_scatter_base", "reduce_scatter_single"},
        {"alltoall_base", "all_to_all_single"},
    ):
        assert changed & renamed


def met(delays_s: list[float]) -> tuple[float, float]:
    """When this rank arrived, and when it went on."""
    from efficientbench.training.groups import meet_on_host

    time.sleep(delays_s[dist.get_rank()])
    arrived_s = time.time()
    meet_on_host(f"test {delays_s}")
    return arrived_s, time.time()


def test_ranks_meet_without_a_collective(ranks: Callable[[int], Ranks]) -> None:
    for delays_s in ([0.0, 0.3], [0.3, 0.0]):
        found = ranks(2).call(met, delays_s)
        assert min(left_s for _, left_s in found) >= max(arrived_s for arrived_s, _ in found)
