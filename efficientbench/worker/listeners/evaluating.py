"""Compute with the model between two of its training steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from efficientbench.model.moe import take_routing
from efficientbench.training.trainer import Trainer
from efficientbench.training.update.optimizer import gather_weights

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


@contextlib.contextmanager
def evaluating(trainer: Trainer) -> Iterator[GPT]:
    """Yield this rank's part of the model in evaluation mode, with the weights of the last update.

    All ranks must call this together. The run has one stage on each rank.
    """
    gather_weights(trainer.stages)
    [stage] = trainer.stages
    stage.eval()
    # A part that is compiled for many lengths would then serve the steps too, whose one length has a faster kernel.
    fused = trainer.config.kernels.fused
    with torch.compiler.set_stance("force_eager") if fused else contextlib.nullcontext():
        yield stage.module
    stage.train()
    # What the routers counted here belongs to no step.
    take_routing(stage.module)
