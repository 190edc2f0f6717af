"""Pools of ranks and a corpus that all distributed tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cells import write_corpus
from support.ranks import Ranks

_pools: dict[tuple[int, str], Ranks] = {}


@pytest.fixture(scope="session")
def ranks() -> Callable[..., Ranks]:
    """`ranks(2)` is the pool of two on the CPU, `ranks(2, "npu")` that on simulated NPUs; each is started once."""

    def pool(size: int, device_type: str = "cpu") -> Ranks:
        key = size, device_type
        if key not in _pools:
            _pools[key] = Ranks(size, device_type)
        return _pools[key]

    return pool


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of random tokens below 131; the folder around it serves as a cache."""
    prefix = tmp_path_factory.mktemp("corpus") / "tokens"
    write_corpus(prefix, vocab_size=131)
    return prefix


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the pools with the last distributed test: other tests measure this machine's memory and time."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for pool in _pools.values():
            pool.close()
        _pools.clear()
