"""What the ranks of a pool run: a few steps, in which one rank's loss or gradients stop being finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from support.tiny_training import tiny_training

from efficientbench.config.schema import RunConfig

What = Literal["loss", "gradients", "experts' gradients", "norm"]

LARGE = 1.5e19
"""Its square is a float32, the sum of two such squares is none."""


@dataclass
class Poisoned:
    """One rank's steps."""

    losses: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    messages: list[str | None] = field(default_factory=list)
    error: str | None = None
    culprit: int | None = None
    scales: list[list[float]] = field(default_factory=list)
    """After each step: the loss scale of each part of the optimizer, in fp16."""
    unchanged: list[bool] = field(default_factory=list)
    """After each step: whether weights, moments and their step counts are those from before it, bit for bit."""


def train_poisoned(
    config: RunConfig, prefix: Path, steps: int, what: What, rank: int, at: tuple[int, ...], waits: bool = False
) -> Poisoned:
    """Train; in the steps `at`, `rank` finds a loss, or one number in its gradients, that is not finite.

    For "norm" every rank finds a finite number, `rank` the largest, and only the norm over all ranks is not finite.
    `waits`: as on a device whose AdamW cannot skip a step by itself.
    """
    import torch.distributed as dist

    from efficientbench.basics.errors import NonFiniteError
    from efficientbench.training.events import Event, StepEnded, StepStarted

    outcome, step = Poisoned(), 0
    before: list[torch.Tensor] = []
    with tiny_training(config, prefix, steps) as trainer:
        stages, optimizer = trainer.stages, trainer.optimizer

        def listen(event: Event) -> None:
            nonlocal step, before
            if isinstance(event, StepStarted):
                step, before = event.step, [tensor.clone() for tensor in _state(stages, optimizer)]
            elif isinstance(event, StepEnded):
                outcome.losses.append(event.loss)
                outcome.skipped.append(event.skipped)
                outcome.messages.append(event.non_finite)
                if config.training.dtype == "fp16":
                    outcome.scales.append([part.grad_scaler.scale.item() for part in optimizer.chained_optimizers])
                after = _state(stages, optimizer)
                same = len(after) == len(before) and all(map(torch.equal, after, before))
                outcome.unchanged.append(same)

        def poisoned() -> bool:
            return step in at and (what == "norm" or dist.get_rank() == rank)

        trainer.listeners.append(listen)
        if waits:
            trainer.queued = None
        if what == "loss":
            last = stages[-1].module.decoder
            last.register_forward_hook(lambda *call: call[-1] * float("nan") if poisoned() else None)
        else:
            experts = what == "experts' gradients"
            [group, *_] = stages[0].expert_parallel_bucket_groups if experts else stages[0].bucket_groups
            large = 1.2 * LARGE if dist.get_rank() == rank else LARGE
            # When its gradients are complete, and before anything looks at them or sends them.
            group.start_grad_sync = _poison(group, group.start_grad_sync, poisoned, what, large)
        try:
            trainer.train(lambda: False)
        except NonFiniteError as error:
            outcome.error, outcome.culprit = str(error), error.rank
            outcome.unchanged.append(all(map(torch.equal, _state(stages, optimizer), before)))
    return outcome


def _poison(
    group: Any, start: Callable[..., None], poisoned: Callable[[], bool], what: What, large: float
) -> Callable[..., None]:
    def start_poisoned(force_all_reduce: bool | None = False) -> None:
        if poisoned():
            group.buckets[0].grad_data[7] = large if what == "norm" else float("inf")
        start(force_all_reduce=force_all_reduce)

    return start_poisoned


def _state(stages: list[Any], optimizer: Any) -> list[torch.Tensor]:
    """Weights, float32 masters and all that AdamW keeps of them, and the routers' shares of choices."""
    from efficientbench.model.moe import routers
    from efficientbench.training.update.optimizer import gather_weights

    gather_weights(stages)
    kept = [parameter.detach() for stage in stages for parameter in stage.parameters()]
    kept += [router.shares for stage in stages for router in routers(stage.module) if router.shares is not None]
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            kept += [parameter.detach() for parameter in group["params"]]
        for state in part.optimizer.state.values():
            kept += [value for value in state.values() if torch.is_tensor(value)]
    return kept
