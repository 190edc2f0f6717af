"""Every private or deep name of Megatron and torch that checkpoints use. Look here first after an upgrade of either.

A test lists these names, and checks that the other files import them only from here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
from megatron.core.dist_checkpointing.strategies.common import TorchCommonLoadStrategy
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_plan
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreLoadPlanner,
    MCoreSavePlanner,
    TorchDistLoadShardedStrategy,
    TorchDistSaveShardedStrategy,
    mcore_to_pyt_state_dict,
)
from megatron.core.dist_checkpointing.strategies.torch import (
    _replace_state_dict_keys_with_sharded_keys as by_sharded_keys,
)
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch.distributed.checkpoint.api import WRAPPED_EXCEPTION
from torch.distributed.checkpoint.api import _wrap_exception as wrap_exception

__all__ = [
    "WRAPPED_EXCEPTION",
    "AsyncCallsQueue",
    "AsyncRequest",
    "DistributedOptimizer",
    "FileSystemWriterAsync",
    "MCoreLoadPlanner",
    "MCoreSavePlanner",
    "TorchCommonLoadStrategy",
    "TorchDistLoadShardedStrategy",
    "TorchDistSaveShardedStrategy",
    "by_sharded_keys",
    "default_store",
    "first_element",
    "mcore_to_pyt_state_dict",
    "nested_values",
    "save_callbacks",
    "save_state_dict_async_plan",
    "wrap_exception",
    "writing_process",
]


def default_store() -> dist.Store:
    """Return the key-value store through which the ranks met."""
    store: dist.Store = dist.distributed_c10d._get_default_store()
    return store


def writing_process(queue: AsyncCallsQueue) -> Any:
    """Return the forked process of the oldest asynchronous save; None if this rank had nothing to write."""
    return queue.async_calls[0].async_caller.process


def save_callbacks(strategy: TorchDistSaveShardedStrategy, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
    """Return the request that writes a plan of `save_state_dict_async_plan`."""
    return strategy._get_save_and_finalize_callbacks(writer, planned)


def first_element(optimizer: DistributedOptimizer, parameter: torch.nn.Parameter) -> int:
    """Return the position of this rank's first optimizer state within a parameter, in elements."""
    begin: int = optimizer._get_model_param_range_map(parameter)["param"].start
    return begin
