"""What the ranks of a pool really send in a training step: counted where torch hands a collective to its backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from efficientbench.config.schema import RunConfig

# Of each collective, which argument holds its payload: what communication_cost.Transfer means by the word.
PAYLOADS = {
    "allreduce_": ("all-reduce", 0),
    "allreduce_coalesced_": ("all-reduce", 0),
    "_allgather_base_": ("all-gather", 0),
    "allgather_": ("all-gather", 0),
    "allgather_into_tensor_coalesced_": ("all-gather", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "reduce_scatter_": ("reduce-scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce-scatter", 1),
    "alltoall_base_": ("all-to-all", 1),
    "send": ("send", 0),
}
# The other side of a send.
RECEIVED = {"recv_"}


@dataclass
class Sent:
    """One rank's step."""

    payload_bytes: Counter[str] = field(default_factory=Counter)
    """Operation → payloads added up."""
    padding_elements: int = 0
    """What gradient buffers have beyond their parameters."""
    stage: int = 0


class Counting(TorchDispatchMode):
    """Adds up the payloads of all collectives among more than one rank."""

    def __init__(self, sent: Sent) -> None:
        super().__init__()
        self.sent = sent

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            name = func.__name__.split(".")[0]
            groups = [each for each in args if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each)]
            assert name in PAYLOADS or name in RECEIVED, f"a collective that nobody counts: {name}"
            if name in PAYLOADS and torch.distributed.ProcessGroup.unbox(groups[0]).size() > 1:
                operation, position = PAYLOADS[name]
                self.sent.payload_bytes[operation] += _bytes(args[position])
        return func(*args, **(kwargs or {}))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value))


def count_step(config: RunConfig, prefix: Path) -> Sent:
    """What this rank sends in the second step of a run."""
    from megatron.core import parallel_state

    from efficientbench.model.gpt import build_stages
    from efficientbench.model.kernels import attention
    from efficientbench.training import groups
    from efficientbench.training.batches import Batches, Vocabulary
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

    sent, device = Sent(), torch.device("cpu")
    with groups.model_parallel(config.parallel, config.training.seed):
        sent.stage = parallel_state.get_pipeline_model_parallel_rank()
        stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
        for stage in stages:
            for buffer in [*stage.buffers, *stage.expert_parallel_buffers]:
                if buffer.data_parallel_world_size > 1:
                    sent.padding_elements += buffer.numel - sum(each.numel() for each in buffer.params)
        batches = Batches(config, 2, [prefix], Vocabulary(config.model.vocab_size, 0, {"name": "tiny"}), device)
        trainer = Trainer(config, 2, stages, build_optimizer(stages, config), batches, [])
        trainer.train_step(1)
        mask = attention.causal_lower_right
        attention.causal_lower_right = outside_of_modes(mask)
        try:
            with Counting(sent):
                trainer.train_step(2)
        finally:
            attention.causal_lower_right = mask
    return sent


def outside_of_modes(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make` while no mode looks on, under which torch cannot make this subclass of Tensor."""

    def made(*arguments: Any) -> Any:
        with _disable_current_modes():
            return make(*arguments)

    return made
