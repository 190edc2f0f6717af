"""Counts what a program asks of the fake device: launches, copies to and from the host, and memory of live tensors."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALIGNMENT_BYTES = 512
"""To a multiple of this the caching allocator rounds every tensor up."""
WITHOUT_A_KERNEL = ("detach", "alias", "empty", "new_empty", "view", "_unsafe_view", "lift", "is_", "prim.device")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Launches(TorchDispatchMode):
    """Counts every operation on the device as one launch; see `as_one` for what one kernel does."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.before_update = 0
        self.to_host = self.to_device = 0
        self.live_bytes = self.peak_bytes = 0
        self.moved_bytes = 0
        """Of the tensors that launches read and write, each once."""
        self._storages: dict[int, int] = {}
        self._inside = 0

    def begin(self) -> None:
        """Forget what was counted; what lives stays."""
        self.operations.clear()
        self.to_host = self.to_device = self.moved_bytes = 0
        self.peak_bytes = self.live_bytes

    def as_one(self, name: str, function: Callable[..., Any], launches: int = 1) -> Callable[..., Any]:
        """Return `function`, whose operations count as so many launches together, and as no memory but its results."""

        def call(*arguments: Any) -> Any:
            with self._uncounted():
                results = function(*arguments)
            self._keep(results)
            self.operations[name] += launches
            self._move(arguments, results)
            return results

        return call

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        self._inside += 1
        yield
        self._inside -= 1

    def _move(self, *tree: Any) -> None:
        tensors = (each for each in tree_leaves(tree) if isinstance(each, torch.Tensor))
        self.moved_bytes += sum(each.nbytes for each in tensors if each.device.type == "cuda")

    def _keep(self, results: Any) -> None:
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
                storage = tensor.untyped_storage()
                if storage._cdata not in self._storages:
                    size = -(-storage.nbytes() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                    self._storages[storage._cdata] = size
                    self.live_bytes += size
                    self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                    weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, key: int) -> None:
        self.live_bytes -= self._storages.pop(key, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        if self._inside:
            return results
        self._keep(results)
        if func in COPIES:
            source, target = (args[1], args[0]) if func is COPIES[1] else (args[0], results)
            if isinstance(source, torch.Tensor) and source.device.type != target.device.type:
                self.to_host += target.device.type == "cpu"
                self.to_device += source.device.type == "cpu"
        name = str(func).removeprefix("aten.")
        tensors = (each for each in tree_leaves([results, args]) if isinstance(each, torch.Tensor))
        launches = not func.is_view and not name.startswith(WITHOUT_A_KERNEL)
        if launches and any(each.device.type == "cuda" for each in tensors):
            self.operations[name] += 1
            self._move(args, results)
        return results
