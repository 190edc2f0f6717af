"""How a checkpoint's tensors come from their device to the process that writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

pytestmark = pytest.mark.usefixtures("single_rank")


class Copies(TorchFunctionMode):
    """Notes of each copy of a tensor whether it is asynchronous, for which torch pins memory and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.asynchronous: list[bool] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.to:
            self.asynchronous.append(kwargs.get("non_blocking", False))
        return func(*args, **kwargs)


def test_saving_a_checkpoint_pins_no_memory(tmp_path: Path) -> None:
    from efficientbench.training.checkpoints.storage import Writer

    writer = Writer(str(tmp_path))
    tensors = [(None, torch.ones(3)), (None, torch.zeros(2))]
    writer.write_buckets, writer.results = [("path", "name", ([], tensors))], None
    _, fetch, _ = writer.get_save_function_and_args()
    with Copies() as copies:
        fetch()
    assert copies.asynchronous == [False, False]
