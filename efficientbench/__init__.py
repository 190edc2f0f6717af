"""EfficientBench: which LLM architecture to pretrain, for the least memory, time and energy per unit of quality."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efficientbench.metrics.analysis.compare import compare_folders as compare
    from efficientbench.metrics.records.runs import load
    from efficientbench.planning.planned import plan
    from efficientbench.studies.study import study

__all__ = ["compare", "load", "plan", "study"]
__version__ = "0.1.0"

_CALLS = {
    "compare": "efficientbench.metrics.analysis.compare:compare_folders",
    "load": "efficientbench.metrics.records.runs:load",
    "plan": "efficientbench.planning.planned:plan",
    "study": "efficientbench.studies.study:study",
}
"""What is called from Python → where it is: the package itself imports nothing."""


def __getattr__(name: str) -> Any:
    """Import a function at its first use."""
    if name not in _CALLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = _CALLS[name].partition(":")
    return getattr(import_module(module), function)
