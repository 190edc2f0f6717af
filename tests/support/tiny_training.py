"""One rank's part of a tiny run, in whichever layout: what most functions that the ranks of a pool run begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    from efficientbench.training.events import Event, Listener
    from efficientbench.training.trainer import Trainer


@dataclass
class Observed:
    """The values of the events of a few steps, on one rank."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """NaN where a step was skipped."""
    validation_losses: list[float] = field(default_factory=list)
    auxiliary_losses: list[float] = field(default_factory=list)
    tokens_per_expert: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)

    def listen(self, event: Event) -> None:
        from efficientbench.training.events import StepEnded, ValidationEnded

        if isinstance(event, StepEnded):
            self.losses.append(event.loss)
            self.norms.append(float("nan") if event.gradient_norm is None else event.gradient_norm)
            if event.routing is not None:
                self.auxiliary_losses.append(event.routing.auxiliary_loss or float("nan"))
                self.tokens_per_expert.append(event.routing.tokens_per_expert)
        elif isinstance(event, ValidationEnded):
            self.validation_losses.append(event.loss)


@contextlib.contextmanager
def tiny_training(
    config: RunConfig, prefix: Path, steps: int, *listeners: Listener, device_name: str = "cpu"
) -> Iterator[Trainer]:
    """This rank's trainer on the corpus `prefix`, within the process groups of its layout."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.data.batches import Batches
    from efficientbench.training.data.sample_index import Vocabulary
    from efficientbench.training.reinforcement.advantages import RolloutBatches
    from efficientbench.training.trainer import Trainer
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    device = torch.device(device_name)
    with groups.model_parallel(config.parallel, config.training.seed):
        stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
        optimizer = build_optimizer(stages, config)
        kind = RolloutBatches if config.training.objective == "rl" else Batches
        batches = kind(config, steps, [prefix], Vocabulary(config.model.vocab_size, 0, {"name": "tiny"}), device)
        yield Trainer(config, steps, stages, optimizer, batches, list(listeners))


@contextlib.contextmanager
def fused_attention_outside_of_modes() -> Iterator[None]:
    """Let torch make the masks of fused attention while no dispatch mode looks on: under one it cannot."""
    from torch.utils._python_dispatch import _disable_current_modes

    from efficientbench.model.kernels import causal_attention

    make: Callable[..., torch.Tensor] = causal_attention.causal_lower_right

    def made(*arguments: int) -> torch.Tensor:
        with _disable_current_modes():
            return make(*arguments)

    causal_attention.causal_lower_right = made
    try:
        yield
    finally:
        causal_attention.causal_lower_right = make
