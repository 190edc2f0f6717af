"""Whole training steps by code of others in float64: the models of transformers and the optimizers of `optimizers`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
from oracles import mixtral, plain_decoder, positions
from oracles.optimizers import AdamW, Muon, Tensors
from oracles.oracle import attention_oracle, weights_of
from support.tiny_training import tiny_training

from efficientbench.architecture.backbone import CHOICES
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import POSITIONS
from efficientbench.config.schema import RunConfig
from efficientbench.config.training import TrainingConfig


@dataclass
class Expected:
    """What a run must come to."""

    losses: list[float] = field(default_factory=list)
    """Of each step: the mean over the tokens of the global batch, without the loss that balances experts."""
    norms: list[float] = field(default_factory=list)
    """Of each step's gradients, before they are clipped."""
    weights: Tensors = field(default_factory=dict)
    """After the last step, by the other model's names."""


@contextlib.contextmanager
def uneven_vectors() -> Iterator[None]:
    """Let initial norms and biases differ from 1 and 0, alike in every layout: a bias of 0 would not show decay."""
    from efficientbench.model import gpt, initial_weights

    def initialize(model: gpt.GPT, config: ModelConfig, seed: int, device: torch.device) -> None:
        initial_weights.initialize(model, config, seed, device)
        for name, parameter in initial_weights.global_parameters(model).items():
            if parameter.dim() == 1:
                tp_rank, tp_size = initial_weights.tensor_parallel_rank(name)
                shape = initial_weights.full_shape(name, parameter, config, tp_size)
                offsets = 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
                parameter.data += initial_weights.shard(offsets, parameter, tp_rank, tp_size)

    with mock.patch.object(gpt, "initialize", initialize):
        yield


def expected(config: RunConfig, prefix: Path, steps: int) -> Expected:
    """Train the other model from our initial weights on our batches; for a world of one rank."""
    with uneven_vectors(), tiny_training(config, prefix, steps) as trainer:
        weights = weights_of(trainer.stages[0].module)
        global_batches = [
            torch.cat(
                [
                    torch.cat([each.tokens, each.labels[:, -1:]], dim=1)
                    for each in trainer.batches.training_step(1 + step)
                ]
            )
            for step in range(steps)
        ]
    model, logits = _other_model(weights, config)
    found, optimizer = Expected(), AdamW(model, config.training)
    if config.training.optimizer == "muon":
        optimizer = Muon(model, config.training, config.model)
    for step, sequences in enumerate(global_batches, start=1):
        micro_batches, losses = sequences.split(config.training.micro_batch_size), []
        for sequence in micro_batches:
            output, auxiliary = logits(sequence[:, :-1])
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), sequence[:, 1:].flatten())
            ((loss + auxiliary) / len(micro_batches)).backward()
            losses.append(loss.item())
        found.losses.append(sum(losses) / len(losses))
        found.norms.append(optimizer.step(_rate(config.training, step, steps)))
    theirs = {name: weight.detach() for name, weight in optimizer.parameters.items()}
    found.weights = getattr(attention_oracle(config.model.attention.kind), "as_ours", dict)(theirs)
    return found


def renamed(weights: Tensors, model: ModelConfig) -> Tensors:
    """Return whole tensors by our global names, each expert's apart, by the names of the other model."""
    if _has_another_backbone(model):
        return plain_decoder.named_for_torch(weights)
    if model.moe:
        return mixtral.to_mixtral(_joined(weights, model.moe.experts), model)
    own = attention_oracle(model.attention.kind).renamed
    if _shows_positions(model):
        weights = dict(weights)
        table = {"table": weights.pop("position_table")} if "position_table" in weights else {}
        return table | {f"qwen2.{name}": each for name, each in own(weights, model).items()}
    return own(weights, model)


def _shows_positions(model: ModelConfig) -> bool:
    """Return whether another encoding than the default is what the model is about, and not what its layers need."""
    turns = "queries and keys" in model.attention_variant.places
    return turns and model.position.kind != next(iter(POSITIONS))


def _has_another_backbone(model: ModelConfig) -> bool:
    return any(getattr(model, key) != type(model).model_fields[key].default for key in CHOICES)


def _joined(weights: Tensors, experts: int) -> Tensors:
    """Lay the experts of a layer side by side."""
    found: Tensors = {}
    for name, weight in weights.items():
        before, is_expert, after = name.partition("mlp.experts.")
        if not is_expert:
            found[name] = weight
        elif after.startswith("0."):
            part = after.removeprefix("0.")
            found[f"{before}mlp.experts.{part}"] = torch.stack(
                [weights[f"{before}mlp.experts.{number}.{part}"] for number in range(experts)]
            )
    return found


Logits = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | float]]


def _other_model(weights: Tensors, config: RunConfig) -> tuple[torch.nn.Module, Logits]:
    """Return a float64 model with our weights, and tokens [B, S] → logits [B, S, V] and what is added to the loss."""
    model = config.model
    if _has_another_backbone(model):
        decoder = plain_decoder.PlainDecoder(weights, model)
        return decoder, lambda tokens: (decoder(tokens), 0.0)
    if _shows_positions(model):
        oracle = positions.Oracle(weights, model).double()
        return oracle, lambda tokens: (oracle(tokens), 0.0)
    if model.moe:
        return _experts(weights, model, config.training.global_batch_size)
    other = attention_oracle(model.attention.kind).same_weights(weights, model).double()
    return other, lambda tokens: (other(tokens).logits, 0.0)


def _experts(weights: Tensors, model: ModelConfig, global_batch_size: int) -> tuple[torch.nn.Module, Logits]:
    assert model.moe is not None
    other, coefficient, over = (
        mixtral.same_weights(weights, model).double(),
        model.moe.auxiliary_loss,
        model.moe.auxiliary_over,
    )
    routed: list[torch.Tensor] = []
    # Of the step so far: the logits of each micro-batch, layer by layer; of the step before: each layer's shares.
    of_step: list[list[torch.Tensor]] = []
    before = [torch.full((model.moe.experts,), 1 / model.moe.experts, dtype=torch.float64)] * model.layers
    for layer in other.model.layers:
        layer.mlp.gate.register_forward_hook(lambda gate, inputs, outputs: routed.append(outputs[0]))

    def logits(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        routed.clear()
        found = other(tokens).logits
        sequences, shares = len(tokens) if over == "sequence" else 1, list(before) if over == "global" else None
        losses = mixtral.auxiliary_losses(routed, model, sequences, shares)
        of_step.append([each.detach() for each in routed])
        if sum(len(layers[0]) for layers in of_step) == global_batch_size * tokens.shape[1]:
            before[:] = [mixtral.chosen_shares(torch.cat(layer), model) for layer in zip(*of_step, strict=True)]
            of_step.clear()
        return found, coefficient * torch.stack(losses).sum()

    return other, logits


def _rate(training: TrainingConfig, step: int, steps: int) -> float:
    """Linear warm-up from 0 in the first part of the steps, then half a cosine down to the least rate."""
    rising = round(training.lr_warmup_fraction * steps)
    if step <= rising:
        return training.learning_rate * step / rising
    highest, least = training.learning_rate, training.min_learning_rate
    return least + (highest - least) * (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2
