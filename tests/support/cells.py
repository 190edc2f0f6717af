"""What the ranks of a pool run: a few training steps in one layout, and what came out of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_training import Observed, tiny_training

from efficientbench.config.schema import RunConfig


@dataclass
class Part:
    """One rank's part of a parameter's gradient."""

    tensor: torch.Tensor
    position: int
    """This rank's number among those that split the parameter."""
    dim: int | None
    stride: int


@dataclass
class Outcome(Observed):
    """A few steps on one rank."""

    gradients: dict[str, Part] = field(default_factory=dict)
    """Of the second step where there is one, by global names: in the first Megatron sends nothing early."""
    pp_rank: int = 0
    document_lengths: Counter[int] = field(default_factory=Counter)


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
    """Train `steps` steps and validate, keeping losses, gradient norms and the second step's gradients."""
    from megatron.core import parallel_state

    outcome = Outcome()
    with tiny_training(config, prefix, steps, outcome.listen, device_name=device_name) as trainer:
        outcome.pp_rank = parallel_state.get_pipeline_model_parallel_rank()
        prepare, prepared = trainer.optimizer.prepare_grads, itertools.count(1)

        def prepare_after_keeping_gradients() -> object:
            if next(prepared) == min(2, steps):
                for stage in trainer.stages:
                    outcome.gradients |= _gradients(stage)
            return prepare()

        trainer.optimizer.prepare_grads = prepare_after_keeping_gradients
        trainer.train(lambda: False)
        outcome.document_lengths = trainer.batches.document_lengths
    return outcome


def _gradients(model: torch.nn.Module) -> dict[str, Part]:
    from efficientbench.model.initial_weights import EXPERTS, expert_names, global_parameters, tensor_parallel_rank

    for buffer in [*model.buffers, *model.expert_parallel_buffers]:
        _gather_reduced_shards(buffer)
    parts = {}
    for name, parameter in global_parameters(model.module).items():
        gradient, position = parameter.main_grad.cpu().clone(), tensor_parallel_rank(name)[0]
        dim = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
        stride = getattr(parameter, "partition_stride", 1)
        if EXPERTS in name:
            for expert, part in zip(expert_names(name, len(gradient)), gradient, strict=True):
                parts[expert] = Part(part, position, dim - 1, stride)
        else:
            parts[name] = Part(gradient, position, dim, stride)
    return parts


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
    found: dict[tuple[int, str], dict[int, Part]] = {}
    for outcome in outcomes:
        for name, part in outcome.gradients.items():
            found.setdefault((outcome.pp_rank, name), {}).setdefault(part.position, part)
    whole: dict[str, torch.Tensor] = {}
    for (_, name), parts in found.items():
        gradient = _join(name, [parts[position] for position in sorted(parts)])
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            gradient = gradient[:vocab_size]
        # A tied embedding lies on two stages, which must agree.
        assert name not in whole or torch.equal(whole[name], gradient), name
        whole[name] = gradient
    return whole


def _join(name: str, parts: list[Part]) -> torch.Tensor:
    dim, stride = parts[0].dim, parts[0].stride
    if dim is None:
        # What every rank holds whole stays the same on all of them only while its gradients do.
        assert all(torch.equal(part.tensor, parts[0].tensor) for part in parts), name
        return parts[0].tensor
    chunks = [part.tensor.chunk(stride, dim=dim) for part in parts]
    return torch.cat([torch.cat([chunk[index] for chunk in chunks], dim=dim) for index in range(stride)], dim=dim)


def assert_equals_single_rank(outcomes: list[Outcome], expected: Outcome, vocab_size: int, relative: float) -> None:
    """Every rank has the losses, norms and routing of `expected`, a single rank's; together they have its gradients."""
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected.losses, rel=relative)
        assert outcome.norms == pytest.approx(expected.norms, rel=relative)
        assert outcome.validation_losses == pytest.approx(expected.validation_losses, rel=relative)
        assert outcome.auxiliary_losses == pytest.approx(expected.auxiliary_losses, rel=relative)
        assert outcome.tokens_per_expert == expected.tokens_per_expert
    gradients, oracle = whole_gradients(outcomes, vocab_size), whole_gradients([expected], vocab_size)
    assert gradients.keys() == oracle.keys()
    for key, gradient in gradients.items():
        # An expert that no token reaches has a gradient of zero.
        error = (gradient - oracle[key]).abs().max() / oracle[key].abs().max().clamp_min(1e-30)
        assert error < relative, f"{key}: relative error {error:.1e}"
