"""Counts the bytes of chosen tensors that a program reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ATEN = torch.ops.aten
WRITES = {ATEN.copy_.default, ATEN.index_put_.default, ATEN._index_put_impl_.default, ATEN.add_.Tensor}
"""Operations that write their first argument. None of them reads it, but the counter's addition."""


class Reads(TorchDispatchMode):
    """Marks each element of the watched tensors that an operation reads, whatever view it sees them by."""

    def __init__(self, watched: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {each.untyped_storage().data_ptr(): name for name, each in watched.items()}
        self._read = {
            name: torch.zeros(each.untyped_storage().nbytes() // each.element_size(), dtype=torch.bool)
            for name, each in watched.items()
        }
        self._bytes = {name: each.element_size() for name, each in watched.items()}

    def bytes(self) -> dict[str, int]:
        """Return the bytes of each watched tensor that were read, each element once."""
        return {name: int(read.sum()) * self._bytes[name] for name, read in self._read.items()}

    def _view(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the marks of a watched tensor's elements; None for another tensor."""
        name = self._names.get(tensor.untyped_storage().data_ptr())
        if name is None:
            return None
        return self._read[name].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [each for each in tree_leaves([args, kwargs]) if isinstance(each, torch.Tensor)]
        results = func(*args, **(kwargs or {}))
        if func.is_view or func in (ATEN._unsafe_view.default, ATEN.detach.default):
            return results
        if func is ATEN.index.Tensor and (marks := self._view(args[0])) is not None:
            marks[tuple(slice(None) if each is None else each for each in args[1])] = True
            return results
        if func is ATEN.embedding.default and (marks := self._view(args[0])) is not None:
            marks[args[1]] = True
            return results
        for tensor in given[1:] if func in WRITES else given:
            marks = self._view(tensor)
            if marks is not None:
                marks.fill_(True)
        return results
