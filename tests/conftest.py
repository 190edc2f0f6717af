"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.long_proofs import is_long
from support.repository import ROOT
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# No test may depend on the machine's speed; a profile counts from its loading, so before any test is imported.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start, also where the tests themselves run in the background and ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup: what tests start would ignore it as well, and has no handler of ours.
        signal.signal(signal.SIGHUP, lambda *_: None)
    # Most of what there is was imported and stays: to look through it for garbage takes a quarter of the time.
    gc.set_threshold(100_000)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long proofs; move the longest files of the unit tests to the front: at the end, one would run alone."""
    for item in items:
        if is_long(item.path.relative_to(ROOT / "tests").as_posix(), item.name):
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: item.path.name not in ("test_gpu_kernels.py", "test_gpu_step.py"))


class ByFile(LoadFileScheduling):
    """Keeps a file in one process, for its fixtures, and all distributed tests, for their pools of ranks."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "tests/distributed" if file.startswith("tests/distributed/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Group by place, not by xdist's marks: those are lost with pytest 9.2, which derives the ids of tests anew."""
    return ByFile(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text and a real tokenizer, laid beside the project; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data cache that all runs share, so that each text is prepared once."""
    return str(tmp_path_factory.mktemp("cache"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none, and where this process has made the CPU stand in for it."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU is here, or the CPU stands in for it in this process: give -m gpu one of its own")


@pytest.fixture(scope="session")
def single_rank(pytestconfig: pytest.Config) -> Iterator[None]:
    """A world of one rank in this process with megatron's process groups: on the CPU, with `-m gpu` on the GPU."""
    from support.single_rank import world_of_one_rank

    from efficientbench.devices.registry import find_device

    with world_of_one_rank(find_device("cuda" if pytestconfig.getoption("markexpr") == "gpu" else "cpu")):
        yield


@pytest.fixture
def without_fla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent layers of transformers that this test is the first to load compute by torch: fla-core needs a GPU."""
    monkeypatch.setitem(sys.modules, "fla", None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`small_disk(kilobytes)` is a folder with no more space than that; a second call changes how much."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(kilobytes: int) -> Path:
        options = f"size={kilobytes}k" + (",remount" if os.path.ismount(folder) else "")
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(command, check=False).returncode != 0:
            pytest.skip("a small disk can only be mounted by root")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)
