"""The operations that had to follow one another."""

from __future__ import annotations

from typing import Any

import torch


def longest_chain(result: torch.Tensor) -> int:
    """Count the operations, as autograd recorded them, on the longest path to `result`: each needs the one before."""
    lengths: dict[Any, int] = {}
    waiting: list[Any] = [result.grad_fn]
    while waiting:
        operation = waiting[-1]
        inputs = [each for each, _ in operation.next_functions if each is not None]
        unknown = [each for each in inputs if each not in lengths]
        waiting += unknown
        if not unknown:
            lengths[waiting.pop()] = 1 + max((lengths[each] for each in inputs), default=0)
    return lengths[result.grad_fn]
