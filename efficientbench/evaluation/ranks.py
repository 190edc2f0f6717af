"""Score a task's items on several ranks: replicas divide the items, and rank 0 gets all results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from efficientbench.evaluation.task import Item, ItemResult, Task
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training import groups

T = TypeVar("T")


def is_first() -> bool:
    """Return whether this is rank 0; only rank 0 reads and writes result files."""
    return dist.get_rank() == 0


def of_first(value: T, kind: Any) -> T:
    """Return rank 0's value on every rank; all ranks must call this together. `kind`: its type, see `gather`."""
    return gather(value, kind)[0] if dist.get_world_size() > 1 else value


def scored(task: Task, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
    """Yield the results of items; all ranks must call this together, with the same items.

    Tensor-parallel ranks score the same items. Replicas exchange their results after each batch, so that rank 0 can
    write them before the next batch is computed.
    """
    replica, replicas = groups.replica()
    own = iter(task.score(items[replica::replicas]))
    if replicas == 1:
        yield from own
        return
    counts = groups.holds_loss()
    while True:
        batch = next(own, None)
        parts = gather(batch if counts else None, list[ItemResult] | None)
        if all(part is None for part in parts):
            return
        yield [result for part in parts for result in part or ()]
