"""Counts the FLOPs of every matrix product and attention kernel that torch dispatches.

torch's own counter knows neither products that add in place, nor the CPU's attention, nor grouped products, and counts
nothing for what it does not know. This one fails there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCT = re.compile(r"mm|matmul|attention|conv|einsum|linear")
"""Names of operations that may multiply matrices. (`dot` is of vectors: the masked sum of the losses.)"""
aten = torch.ops.aten


def _plain(args: tuple[Any, ...], out: Any) -> int:
    return 2 * args[0].numel() * args[1].shape[-1]


def _linear(args: tuple[Any, ...], out: Any) -> int:
    return 2 * args[0].numel() * args[1].shape[0]


def _adding(args: tuple[Any, ...], out: Any) -> int:
    return _plain(args[1:], out)


def _attention(args: tuple[Any, ...], out: Any) -> int:
    """Count scores and their product with the values; half of the square where the kernel is causal."""
    query, key, value, _, causal = (*args, False, False)[:5] if len(args) < 5 else args[:5]
    pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return pairs * (query.shape[3] + value.shape[3]) * 2 // (2 if causal else 1)


def _attention_backward(args: tuple[Any, ...], out: Any) -> int:
    """Count the scores again, then the gradients of values, probabilities, queries and keys."""
    _, query, key, value, _, _, _, causal = args[:8]
    pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return pairs * (3 * query.shape[3] + 2 * value.shape[3]) * 2 // (2 if causal else 1)


FORMULAS: dict[Any, Callable[[tuple[Any, ...], Any], int]] = {
    aten.mm: _plain,
    aten.bmm: _plain,
    aten.addmm: _adding,
    aten.addmm_: _adding,
    aten.baddbmm: _adding,
    aten.baddbmm_: _adding,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


# Not in every build, not in torch 2.6.
if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    FORMULAS[torch.ops.mkldnn._linear_pointwise] = _linear
if hasattr(aten, "_grouped_mm"):
    FORMULAS[aten._grouped_mm] = _plain


class UncountedError(Exception):
    """An operation that may be a product of matrices has no formula."""


class FlopCounter(TorchDispatchMode):
    """Within it, `total` grows by the FLOPs of every product.

    Raises:
        UncountedError: an operation may be a product, and no formula is known for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **kwargs or {})
        formula = FORMULAS.get(function.overloadpacket)
        if formula is not None:
            self.total += formula(args, out)
        else:
            name = function.overloadpacket.__name__
            if PRODUCT.search(name):
                raise UncountedError(f"{name}: no formula counts its FLOPs")
        return out
