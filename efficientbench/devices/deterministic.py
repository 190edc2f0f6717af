"""Let torch compute the same bits in every run, and find the operator that cannot."""

from __future__ import annotations

import re

NO_KERNEL = re.compile(r"(\S+) does not have a deterministic implementation")
"""torch's error text for an operator that has no deterministic kernel on the device."""


def compute_deterministically() -> None:
    """Make torch choose deterministic kernels, and raise RuntimeError where an operator has none.

    With `warn_only` attention would keep its faster kernels, whose backward passes sum in any order.
    """
    import torch

    torch.use_deterministic_algorithms(True)
    # By default torch then fills all new memory, which costs time and changes no number that a model computes.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def operator_without(error: BaseException) -> str | None:
    """Return the operator for which torch has raised NO_KERNEL; None for any other error."""
    found = NO_KERNEL.search(str(error)) if isinstance(error, RuntimeError) else None
    return found[1] if found else None
