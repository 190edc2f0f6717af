"""A micro-batch computed twice: it leaves no trace in the run, and a bit that one rank flips is found there."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.configs import tiny
from support.ranks import Ranks
from support.tiny_training import Observed, tiny_training

from efficientbench.config.schema import RunConfig
from efficientbench.metrics.records.record_parts import Mismatch

DETERMINISTIC = "training.deterministic=true"
EVERY_STEP = (DETERMINISTIC, "training.recheck_every=1")
STEPS = 3

LAYOUTS = {
    "one rank": (1, []),
    "TP 2": (2, ["parallel.tp=2"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "PP 2, interleaved": (2, ["parallel.pp=2", "parallel.vpp=2", "model.layers=4"]),
    "DP 2": (2, ["parallel.dp=2"]),
    "DP 2, plain optimizer": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "CP 2": (2, ["parallel.cp=2"]),
    "EP 2": (2, ["parallel.dp=2", "parallel.ep=2"]),
}


@dataclass
class Trained:
    """What a few steps left on one rank."""

    observed: Observed
    state: list[torch.Tensor]
    """Weights, random generators and buffers."""
    mismatches: list[tuple[Mismatch, ...]]


def train(config: RunConfig, prefix: Path, plant: Callable[[Any], None] = lambda trainer: None) -> Trained:
    """Train `STEPS` steps with random dropout of embeddings, and with running sums in every norm."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    from efficientbench.training.events import Event, RecheckEnded
    from efficientbench.training.update.optimizer import gather_weights

    observed, mismatches = Observed(), []

    def listen(event: Event) -> None:
        observed.listen(event)
        if isinstance(event, RecheckEnded):
            mismatches.append(event.mismatches)

    torch.manual_seed(config.training.seed)
    with tiny_training(config, prefix, STEPS, listen) as trainer:
        for stage in trainer.stages:
            _draw_and_count(stage.module)
        plant(trainer)
        trainer.train(lambda: False)
        gather_weights(trainer.stages)
        modules = [stage.module for stage in trainer.stages]
        state = [each.detach().clone() for module in modules for each in (*module.parameters(), *module.buffers())]
        state += [torch.get_rng_state(), *get_cuda_rng_tracker().get_states().values()]
    return Trained(observed, state, mismatches)


def _draw_and_count(model: torch.nn.Module) -> None:
    """Let a model draw random numbers and change its buffers as it computes, as one from outside may."""

    def drop(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(output, 0.1, module.training)

    def count(module: torch.nn.Module, inputs: object, output: object) -> None:
        module.calls += 1

    for name, module in model.named_modules():
        if name.endswith("input_layernorm"):
            module.register_forward_hook(drop)
            module.register_buffer("calls", torch.zeros(1))
            module.register_forward_hook(count)


@pytest.mark.parametrize(
    ("variant", "layout"),
    [
        ("gqa_1.5B", "TP 2"),
        *(
            pytest.param(*case, marks=pytest.mark.proof)
            for case in (
                *(("gqa_1.5B", layout) for layout in ("one rank", "PP 2", "DP 2", "CP 2")),
                *(("gqa_1.5B", layout) for layout in ("PP 2, interleaved", "DP 2, plain optimizer")),
                *(("moe_1.5Bx8", layout) for layout in ("one rank", "TP 2", "EP 2", "PP 2, interleaved")),
            )
        ),
    ],
)
def test_a_recheck_leaves_no_trace_in_the_run(
    variant: str, layout: str, ranks: Callable[[int], Ranks], corpus: Path
) -> None:
    size, words = LAYOUTS[layout]
    words = [*words, f"data.cache={corpus.parent}", "training.validation_interval=2"]
    if variant.startswith("moe") and "parallel.tp=2" in words:
        words.append("parallel.sp=true")
    plain = ranks(size).call(train, tiny(variant, *words, DETERMINISTIC), corpus)
    rechecked = ranks(size).call(train, tiny(variant, *words, *EVERY_STEP), corpus)
    for one, other in zip(plain, rechecked, strict=True):
        assert other.mismatches == [()] * STEPS
        assert one.observed == other.observed
        assert len(one.state) == len(other.state)
        assert all(map(torch.equal, one.state, other.state))


def flip(rank: int, name: str, call: int, trainer: Any) -> None:
    """Flip one bit of what a module of `rank` returns at its `call`-th training call, as failing hardware would."""
    import torch.distributed as dist

    calls = 0

    def disturb(module: torch.nn.Module, inputs: object, output: Any) -> Any:
        nonlocal calls
        calls += module.training and torch.is_grad_enabled()
        if calls != call:
            return output
        values, *others = output if isinstance(output, tuple) else (output,)
        values = values.clone()
        values.view(-1).view(torch.int32)[5] ^= 1 << 20
        return (values, *others) if others else values

    if dist.get_rank() == rank:
        [module] = (each for key, each in trainer.stages[0].module.named_modules() if key == name)
        module.register_forward_hook(disturb)


def flip_gradient(rank: int, name: str, call: int, trainer: Any) -> None:
    """Flip one bit of a weight's gradient in the `call`-th backward pass of `rank`."""
    import torch.distributed as dist

    calls = 0

    def disturb(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == call:
            gradient = gradient.clone()
            gradient.view(-1).view(torch.int32)[3] ^= 1
        return gradient

    if dist.get_rank() == rank:
        dict(trainer.stages[0].module.named_parameters())[name].register_hook(disturb)


QKV = "decoder.layers.0.self_attention.linear_qkv"
NORM = "decoder.layers.0.input_layernorm.weight"


@pytest.mark.parametrize(
    ("layout", "plant", "rank", "place", "where"),
    [
        ("one rank", flip, 0, QKV, f"the output of {QKV}"),
        # The other rank adds up what both have computed, and so has other bits later.
        ("TP 2", flip, 1, QKV, f"the output of {QKV}"),
        ("TP 2", flip, 0, QKV, f"the output of {QKV}"),
        # The other stage gets what this one has computed, or its gradient.
        ("PP 2", flip, 0, QKV, f"the output of {QKV}"),
        ("PP 2", flip, 1, QKV, "the output of decoder.layers.1.self_attention.linear_qkv"),
        ("PP 2", flip_gradient, 1, NORM, "the gradient of decoder.layers.1.input_layernorm.weight"),
        ("DP 2", flip, 1, QKV, f"the output of {QKV}"),
        ("DP 2", flip_gradient, 0, NORM, f"the gradient of {NORM}"),
    ],
)
def test_the_rank_that_flips_a_bit_is_named(
    layout: str,
    plant: Callable[..., None],
    rank: int,
    place: str,
    where: str,
    ranks: Callable[[int], Ranks],
    corpus: Path,
) -> None:
    size, words = LAYOUTS[layout]
    config = tiny("gqa_1.5B", *words, *EVERY_STEP, f"data.cache={corpus.parent}")
    # The second of the two computations after the second step.
    each = 4 // (2 if layout == "DP 2" else 1)
    call = 2 * (each + 2)
    for found in ranks(size).call(train, config, corpus, functools.partial(plant, rank, place, call)):
        clean, [mismatch], after = found.mismatches
        assert (clean, after) == ((), ())
        assert (mismatch.step, mismatch.rank, mismatch.where) == (2, rank, where)
        assert mismatch.device.startswith(f"{socket.gethostname()}, cpu 0 (")
