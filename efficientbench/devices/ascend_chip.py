"""What an Ascend product is called, and what that says about it."""

from __future__ import annotations

import re

FAMILIES = {
    "A2": r"Ascend910B\d",
    "A3": r"Ascend910_93",
    "950": r"Ascend950|Ascend910_95",
    "310": r"Ascend310",
    # Last, since "Ascend910B" without a number is of the first generation, as 910A, 910ProA and 910PremiumA are.
    "910": r"Ascend910",
}
"""Family → how the names begin that torch_npu gives its products (`SocVersion` in torch_npu's NpuVariables.h)."""

INFERENCE = "310"
"""The family that has no training."""

FUSED = ("A2", "A3")
"""Families that torch_npu's fused kernels are documented for."""


def family(name: str) -> str | None:
    """The family of a product by torch_npu's name for it; None for one that is not known."""
    return next((each for each, pattern in FAMILIES.items() if re.match(pattern, name)), None)
