"""EfficientBench: which LLM architecture to pretrain, for the least memory, time and energy per unit of quality."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from efficientbench.studies.study import study

__all__ = ["study"]


def __getattr__(name: str) -> object:
    """Import what is called from Python where it is used: the package itself imports nothing."""
    if name == "study":
        from efficientbench.studies.study import study

        return study
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
