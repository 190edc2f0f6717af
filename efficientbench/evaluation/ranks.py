"""Score a task's items on several ranks: replicas divide the items, and rank 0 gets all results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.distributed as dist

from efficientbench.evaluation.task import Item, ItemResult, Task
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training import groups


def is_first() -> bool:
    """Return whether this is rank 0; only rank 0 reads and writes result files."""
    return dist.get_rank() == 0


def of_first(names: list[str]) -> list[str]:
    """Return rank 0's names on every rank; all ranks must call this together."""
    return gather(names, list[str])[0] if dist.get_world_size() > 1 else names


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
