"""Try on one rank whether a run fits into the devices' memory: a few of its steps, on random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from efficientbench.devices.base import Device
from efficientbench.model.gpt import build_stages
from efficientbench.running.job import Job
from efficientbench.running.rank_process import Rank
from efficientbench.training import groups
from efficientbench.training.data.batch import Batch
from efficientbench.training.data.batches import Batches
from efficientbench.training.trainer import Trainer
from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

STEPS = 2
"""The second step has the optimizer's moments, which the first one makes, beside its activations."""


class RandomTokens:
    """The micro-batches of one rank: the same random tokens in all of them."""

    def __init__(self, job: Job, device: torch.device) -> None:
        training = job.config.training
        shape = (training.micro_batch_size, training.seq_len // job.layout.cp)
        tokens = torch.randint(job.config.model.vocab_size, shape, device=device)
        weights = torch.ones(shape, device=device)
        self.batch = Batch(tokens, tokens, weights, tokens.numel(), divisor=tokens.numel())
        self.micro_batches, self.device = job.layout.micro_batches, device

    def training_step(self, step: int) -> Iterator[Batch]:
        """Return the micro-batches of a step."""
        return iter([self.batch] * self.micro_batches)


def random_trainer(job: Job, steps: int, device: torch.device) -> Trainer:
    """Return this rank's trainer of a run on random tokens, within its process groups; `steps`: at most so many."""
    config = job.config
    stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
    batches = cast("Batches", RandomTokens(job, device))
    return Trainer(config, steps, stages, build_optimizer(stages, config), batches, [])


def try_rank(job: Job, rank: Rank, device: Device, torch_device: torch.device) -> bool:
    """Train STEPS steps; return whether a signal stopped them before their end. Errors are those of a run."""
    config, limit_s = job.config, job.config.faults.hang_limit_s
    rank.heartbeat.at(0, "trying a micro-batch")
    with (
        groups.world(device.backend, limit_s, device.group_device(torch_device, job.layout.pp)),
        groups.model_parallel(config.parallel, config.training.seed, limit_s),
    ):
        trainer = random_trainer(job, STEPS, torch_device)
        for step in range(1, STEPS + 1):
            if trainer.train_step(step, rank.stop_requested):
                return True
        device.synchronize()
    return False
