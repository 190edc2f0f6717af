"""What the reading of batches asks of the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.usefixtures("single_rank")


def test_the_reading_thread_uses_the_device_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientbench.training.data.batches import Batches

    chosen: list[int] = []
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(set_device=chosen.append))
    batches = object.__new__(Batches)
    batches.device, batches._pins = torch.device("cuda", 3), True
    batches._begin_reading()
    assert chosen == [3]


def test_no_memory_is_pinned_without_an_accelerator_in_the_oldest_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientbench.training.data.batches import _pins

    def current_accelerator() -> torch.device:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert not _pins(torch.device("cpu"))
