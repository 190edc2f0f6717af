"""torch.compile for the small parts: functions of a few elementwise operations and a reduction become one kernel each.

They are compiled one by one and not with the model around them: collectives, recomputation and gradients that are added
in place stay as they are, and a compiled part is tested against the same part as torch runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled, once in a process; the second shape compiles it anew, for every size.

    Not with fullgraph=True: a process that has met many shapes then continues with torch's own kernels.
    """
    return torch.compile(function)
