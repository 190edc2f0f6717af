"""What the ranks of a pool really send in a training step: counted where torch hands a collective to its backend."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from support.tiny_training import fused_attention_outside_of_modes, tiny_training
from torch.utils._python_dispatch import TorchDispatchMode

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

    sent = Sent()
    with tiny_training(config, prefix, 2) as trainer:
        sent.stage = parallel_state.get_pipeline_model_parallel_rank()
        for stage in trainer.stages:
            for buffer in [*stage.buffers, *stage.expert_parallel_buffers]:
                if buffer.data_parallel_world_size > 1:
                    sent.padding_elements += buffer.numel - sum(each.numel() for each in buffer.params)
        trainer.train_step(1)
        with fused_attention_outside_of_modes(), Counting(sent):
            trainer.train_step(2)
    return sent
