"""Pools of ranks that all distributed tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ranks import Ranks

_pools: dict[int, Ranks] = {}


@pytest.fixture(scope="session")
def ranks() -> Callable[[int], Ranks]:
    """`ranks(2)` is the pool of two; each is started once."""

    def pool(size: int) -> Ranks:
        if size not in _pools:
            _pools[size] = Ranks(size)
        return _pools[size]

    return pool


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the pools with the last distributed test: other tests measure this machine's memory and time."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for pool in _pools.values():
            pool.close()
        _pools.clear()
