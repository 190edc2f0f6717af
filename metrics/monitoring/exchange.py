"""Sends values between ranks as JSON: unlike a pickle, it runs no code where it is read."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

T = TypeVar("T")


def gather(value: T, kind: Any) -> list[T]:
    """Return every rank's `value`, in rank order, on every rank; all ranks must call this together.

    Args:
        value: this rank's value: plain data, paths, or dataclasses of them.
        kind: the value's type, such as `int | None`, by which the ranks' values are checked and built.
    """
    adapter = TypeAdapter(kind)
    text = json.dumps(adapter.dump_python(value, mode="json")).encode()
    device = torch.device(dist.distributed_c10d._get_object_coll_device())
    lengths = _gather_equal(torch.tensor([len(text)], device=device)).flatten().tolist()
    padded = torch.frombuffer(bytearray(text.ljust(max(lengths))), dtype=torch.uint8).to(device)
    texts = [row.numpy().tobytes()[:length] for row, length in zip(_gather_equal(padded), lengths, strict=True)]
    return [adapter.validate_python(json.loads(each)) for each in texts]


def _gather_equal(values: torch.Tensor) -> torch.Tensor:
    """Gather every rank's values [n], n equal on all ranks, into [ranks, n] on the host."""
    gathered = values.new_empty(dist.get_world_size() * values.numel())
    dist.all_gather_into_tensor(gathered, values)
    return gathered.view(-1, values.numel()).cpu()
