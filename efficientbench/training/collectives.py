"""Count this rank's collectives in every process group, Megatron's included."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def collectives_begun() -> dict[str, int]:
    """Return how many collectives this rank has begun, by the name of the process group."""
    # torch compares these numbers to find ranks that are out of step; they have no public name.
    names: dict[Any, str] = dict(dist.distributed_c10d._world.pg_names)
    return {str(name): int(group._get_sequence_number_for_group()) for group, name in names.items()}
