"""What the ranks of a pool run: a few training steps in one layout, and what came out of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from efficientbench.config.schema import RunConfig


@dataclass
class Piece:
    """One rank's part of a parameter's gradient."""

    tensor: torch.Tensor
    position: int
    """This rank's number among those that split the parameter."""
    dim: int | None
    stride: int


@dataclass
class Outcome:
    """A few steps on one rank."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    auxiliary_losses: list[float] = field(default_factory=list)
    tokens_per_expert: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    gradients: dict[str, Piece] = field(default_factory=dict)
    pp_rank: int = 0


def write_corpus(prefix: Path, vocab_size: int, documents: int = 60, length: int = 120) -> None:
    """Random tokens that repeat often enough to be learned, in megatron's format."""
    random = np.random.default_rng(0)
    write_tokens(prefix, [random.zipf(1.5, length) % vocab_size for _ in range(documents)])


def write_tokens(prefix: Path, documents: Iterable[np.ndarray]) -> None:
    """Documents of tokens, by megatron's own writer."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for document in documents:
        builder.add_document(torch.from_numpy(document), [len(document)])
    builder.finalize(f"{prefix}.idx")


def train(config: RunConfig, prefix: Path, steps: int, device_name: str = "cpu") -> Outcome:
    """Train `steps` steps and validate, keeping losses, gradient norms and the first step's gradients."""
    from megatron.core import parallel_state

    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.batches import Batches, Vocabulary
    from efficientbench.training.events import Event, StepEnded, ValidationEnded
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

    outcome = Outcome()

    def listen(event: Event) -> None:
        if isinstance(event, StepEnded):
            outcome.losses.append(event.loss)
            outcome.norms.append(event.gradient_norm or float("nan"))
            if event.routing is not None:
                outcome.auxiliary_losses.append(event.routing.auxiliary_loss or float("nan"))
                outcome.tokens_per_expert.append(event.routing.tokens_per_expert)
        elif isinstance(event, ValidationEnded):
            outcome.validation_losses.append(event.loss)

    device = torch.device(device_name)
    with groups.model_parallel(config.parallel, config.training.seed):
        outcome.pp_rank = parallel_state.get_pipeline_model_parallel_rank()
        stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
        optimizer = build_optimizer(stages, config)
        batches = Batches(config, steps, [prefix], Vocabulary(config.model.vocab_size, 0, {"name": "tiny"}), device)
        prepare = optimizer.prepare_grads

        def prepare_after_keeping_gradients() -> object:
            if not outcome.gradients:
                for stage in stages:
                    outcome.gradients |= _gradients(stage)
            return prepare()

        optimizer.prepare_grads = prepare_after_keeping_gradients
        Trainer(config, steps, stages, optimizer, batches, [listen]).train(lambda: False)
    return outcome


def _gradients(model: torch.nn.Module) -> dict[str, Piece]:
    from efficientbench.model.initial_weights import EXPERTS, expert_names, global_parameters, tensor_parallel_rank

    for buffer in [*model.buffers, *model.expert_parallel_buffers]:
        _gather_reduced_shards(buffer)
    pieces = {}
    for name, parameter in global_parameters(model.module).items():
        gradient, position = parameter.main_grad.cpu().clone(), tensor_parallel_rank(name)[0]
        dim = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
        stride = getattr(parameter, "partition_stride", 1)
        if EXPERTS in name:
            for expert, part in zip(expert_names(name, len(gradient)), gradient, strict=True):
                pieces[expert] = Piece(part, position, dim - 1, stride)
        else:
            pieces[name] = Piece(gradient, position, dim, stride)
    return pieces


def _gather_reduced_shards(buffer: object) -> None:
    # The distributed optimizer leaves each rank only its own shard of each bucket reduced.
    import torch.distributed as dist

    group = buffer.data_parallel_group  # type: ignore[attr-defined]
    if not buffer.ddp_config.use_distributed_optimizer or group.size() == 1:  # type: ignore[attr-defined]
        return
    for bucket in buffer.buckets:  # type: ignore[attr-defined]
        shard = bucket.grad_data.view(group.size(), -1)[group.rank()].clone()
        dist.all_gather_into_tensor(bucket.grad_data, shard, group=group)


def whole_gradients(outcomes: list[Outcome], vocab_size: int) -> dict[str, torch.Tensor]:
    """Every parameter's full gradient, put together from the ranks that split it, of the first replica that has it."""
    found: dict[tuple[int, str], dict[int, Piece]] = {}
    for outcome in outcomes:
        for name, piece in outcome.gradients.items():
            found.setdefault((outcome.pp_rank, name), {}).setdefault(piece.position, piece)
    whole: dict[str, torch.Tensor] = {}
    for (_, name), pieces in found.items():
        gradient = _join(name, [pieces[position] for position in sorted(pieces)])
        if name == "embedding.word_embeddings.weight":
            gradient = gradient[:vocab_size]
        # The tied embedding lies on two stages, which must agree.
        assert name not in whole or torch.equal(whole[name], gradient), name
        whole[name] = gradient
    return whole


def _join(name: str, parts: list[Piece]) -> torch.Tensor:
    dim, stride = parts[0].dim, parts[0].stride
    if dim is None:
        # What every rank holds whole stays the same on all of them only while its gradients do.
        assert all(torch.equal(part.tensor, parts[0].tensor) for part in parts), name
        return parts[0].tensor
    chunks = [part.tensor.chunk(stride, dim=dim) for part in parts]
    return torch.cat([torch.cat([chunk[index] for chunk in chunks], dim=dim) for index in range(stride)], dim=dim)
