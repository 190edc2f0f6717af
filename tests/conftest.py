"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start, also where the tests themselves run in the background and ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text and a real tokenizer, laid beside the project; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    return folder


@pytest.fixture(scope="session")
def single_rank() -> Iterator[None]:
    """A world of one gloo rank in this process, on the CPU, with megatron's process groups."""
    import torch.distributed as dist

    from efficientbench.devices.cpu import CPU

    CPU().prepare(0)
    from efficientbench.config.schema import ParallelConfig
    from efficientbench.training import groups

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with groups.model_parallel(ParallelConfig(), seed=0):
        yield
    dist.destroy_process_group()
