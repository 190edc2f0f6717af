"""Pools of ranks that all distributed tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """`ranks(2)` is the pool of two; each is started once."""
    pools: dict[int, Ranks] = {}

    def pool(size: int) -> Ranks:
        if size not in pools:
            pools[size] = Ranks(size)
        return pools[size]

    yield pool
    for started in pools.values():
        started.close()
