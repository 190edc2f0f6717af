"""One training step of ours and one of transformers', on the same tokens, for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    from efficientbench.training.trainer import Trainer

Step = Callable[[], object]


def random_tokens(config: RunConfig, device: torch.device) -> torch.Tensor:
    """[B, S + 1], one micro-batch and the token that follows it."""
    training = config.training
    return torch.randint(config.model.vocab_size, (training.micro_batch_size, training.seq_len + 1), device=device)


def our_step(config: RunConfig, device: torch.device, sequences: torch.Tensor) -> tuple[Step, torch.nn.Module]:
    """One optimizer step whose micro-batches are all `sequences`, and the stage that it trains."""
    trainer = our_trainer(config, device, sequences)
    return lambda: trainer.train_step(1), trainer.stages[0].module


def our_trainer(config: RunConfig, device: torch.device, sequences: torch.Tensor) -> Trainer:
    """A trainer whose micro-batches are all `sequences`."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training.data.batch import Batch
    from efficientbench.training.trainer import Trainer
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    [stage] = build_stages(config, device)
    tokens, labels = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
    batch = Batch(tokens, labels, torch.ones(tokens.shape, device=device), tokens.numel(), tokens.numel())
    replicas = config.parallel.dp or 1
    count = config.training.global_batch_size // (config.training.micro_batch_size * replicas)

    class SameBatch:
        micro_batches = count

        def __init__(self) -> None:
            self.device = device

        def training_step(self, step: int) -> Iterator[Batch]:
            return iter([batch] * count)

    model = wrap_data_parallel(stage, config)
    return Trainer(config, config.training.steps or 1, [model], build_optimizer([model], config), SameBatch(), [])


def transformers_step(qwen2: torch.nn.Module, config: RunConfig, sequences: torch.Tensor, autocast: bool) -> Step:
    """The same of a transformers model: fused AdamW without decay on norms and biases, clipping.

    `autocast`: its weights are float32 and it computes in bf16; else it computes in the dtype of its weights.
    """
    training, device_type = config.training, sequences.device.type
    parameters = list(qwen2.parameters())
    groups = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [each for each in parameters if each.dim() == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=training.learning_rate, betas=(training.beta1, training.beta2), fused=True)
    tokens, labels = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
    count = training.global_batch_size // training.micro_batch_size

    def step() -> None:
        for _ in range(count):
            with torch.autocast(device_type, torch.bfloat16, enabled=autocast):
                loss = qwen2(input_ids=tokens, labels=tokens, shift_labels=labels).loss
            (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(parameters, training.gradient_clip, foreach=True)
        adamw.step()
        adamw.zero_grad()

    return step
