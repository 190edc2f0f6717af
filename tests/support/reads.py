"""Counts the bytes of chosen tensors that a program reads, and those that it writes as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

ATEN = torch.ops.aten
WRITES = {ATEN.copy_.default, ATEN.index_put_.default, ATEN._index_put_impl_.default, ATEN.add_.Tensor}
"""Operations that write their first argument. None of them reads it, but the counter's addition."""
WRITES_ALL = {ATEN.copy_.default, ATEN.add_.Tensor, ATEN.mul_.Tensor}
"""Operations that write every element of their first argument."""


class Reads(TorchDispatchMode):
    """Marks each element of the watched tensors that an operation reads, whatever view it sees them by."""

    def __init__(self, watched: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {each.untyped_storage().data_ptr(): name for name, each in watched.items()}
        self._read, self._written = (
            {
                name: torch.zeros(each.untyped_storage().nbytes() // each.element_size(), dtype=torch.bool)
                for name, each in watched.items()
            }
            for _ in range(2)
        )
        self._bytes = {name: each.element_size() for name, each in watched.items()}

    def bytes(self) -> dict[str, int]:
        """Return the bytes of each watched tensor that were read, each element once."""
        return {name: int(read.sum()) * self._bytes[name] for name, read in self._read.items()}

    def written_bytes(self) -> dict[str, int]:
        """Return the bytes of each watched tensor that operations of WRITES_ALL wrote, each element once."""
        return {name: int(written.sum()) * self._bytes[name] for name, written in self._written.items()}

    def _view(self, tensor: torch.Tensor, written: bool = False) -> torch.Tensor | None:
        """Return the marks of a watched tensor's elements as read, or as written; None for another tensor."""
        name = self._names.get(tensor.untyped_storage().data_ptr())
        if name is None:
            return None
        marks = (self._written if written else self._read)[name]
        return marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

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
        if func in WRITES_ALL and (marks := self._view(given[0], written=True)) is not None:
            marks.fill_(True)
        return results


def read_by_a_step(model: GPT, rows: int, length: int, room: int) -> tuple[int, int, dict[str, int]]:
    """Return the bytes of weights, of the cache, and of its parts by name, that a step reads which makes rows so long.

    Of a recurrent state, those that it writes count too.
    """
    from efficientbench.model.cache import Cache

    cache = Cache(model, rows, room)
    cache.fresh = False
    watched = {f"weights {name}": each.detach() for name, each in model.named_parameters()}
    for number, state in enumerate(cache.states):
        watched |= {f"cache {number} {name}": each.normal_() for name, each in vars(state).items()}
    cache.lengths.fill_(length - 1)
    cache.reach = length
    with torch.no_grad(), cache.bound(), Reads(watched) as reads:
        model(torch.arange(rows)[:, None], only=torch.zeros(rows, dtype=torch.int64))
    found, written = reads.bytes(), reads.written_bytes()
    for number, state in enumerate(cache.states):
        if "sums" in vars(state):
            for name in vars(state):
                found[f"cache {number} {name}"] += written[f"cache {number} {name}"]
    weights, kept = (
        sum(size for name, size in found.items() if name.startswith(part)) for part in ("weights", "cache")
    )
    return weights, kept, found
