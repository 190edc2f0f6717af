"""Pools of ranks and a corpus that all distributed tests share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cells import write_corpus
from support.checkpoints import train
from support.configs import tiny
from support.ranks import Ranks

from efficientbench.training.checkpoints.manifest import checkpoint_folder

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


@pytest.fixture(scope="session")
def original(ranks: Callable[[int], Ranks], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints after steps 2 and 4."""
    folder = tmp_path_factory.mktemp("original")
    settings = ("checkpoint.interval=2", "checkpoint.keep=3", "parallel.dp=2")
    ranks(2).call(train, tiny("gqa_1.5B", f"data.cache={corpus.parent}", *settings), corpus, 5, folder)
    return folder


@pytest.fixture
def run_folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil, without the last checkpoint, which holds weights alone."""
    for step in (2, 4):
        shutil.copytree(checkpoint_folder(original, step), checkpoint_folder(tmp_path, step))
    return tmp_path


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the pools with the last distributed test: other tests measure this machine's memory and time."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for pool in _pools.values():
            pool.close()
        _pools.clear()
