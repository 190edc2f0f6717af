"""The cache of sample indices, which megatron writes without a thought of what may end it half-way."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.usefixtures("single_rank")


def test_what_a_build_left_unfinished_is_built_again(tmp_path: Path) -> None:
    from efficientbench.training.sample_index import _locked

    whole, torn, building = tmp_path / "whole.npy", tmp_path / "torn.npy", tmp_path / "building"
    for path, time_s in ((whole, 100), (building, 200), (torn, 300)):
        path.touch()
        os.utime(path, (time_s, time_s))
    with _locked(tmp_path):
        assert whole.exists()
        assert not torn.exists()
        assert building.exists()
    assert not building.exists()


def test_a_build_that_fails_leaves_its_mark(tmp_path: Path) -> None:
    from efficientbench.training.sample_index import _locked

    with pytest.raises(OSError, match="full"), _locked(tmp_path):
        raise OSError("full")
    assert (tmp_path / "building").exists()


def test_the_thread_that_reads_uses_the_device_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientbench.training.batches import Batches

    chosen: list[int] = []
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(set_device=chosen.append))
    batches = object.__new__(Batches)
    batches.device, batches._pins = torch.device("cuda", 3), True
    batches._begin_reading()
    assert chosen == [3]


def test_nothing_is_pinned_where_the_oldest_torch_has_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientbench.training.batches import _pins

    def current_accelerator() -> torch.device:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert not _pins(torch.device("cpu"))
