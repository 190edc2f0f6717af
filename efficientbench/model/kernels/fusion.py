"""torch.compile for the small parts: functions of a few elementwise operations and a reduction become one kernel each.

They are compiled one by one and not with the model around them: collectives, recomputation and gradients that are added
in place stay as they are, and a compiled part is tested against the same part as torch runs it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def fused(function: Callable[..., Any], widths: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Return `function` compiled, once in a process for each of `widths`; a second shape compiles it for every size.

    A model has layers of several widths, each with one number of tokens: `widths` gives each kernels for its sizes.

    Not with fullgraph=True: a process that has met many shapes then continues with torch's own kernels.

    Args:
        function: a module's, of tensors.
        widths: sizes that the layers of a model differ in.
    """
    # The compiler remembers the shapes of a function by its code's file, line and name.
    name = "_".join([function.__name__, *map(str, widths)])
    return torch.compile(types.FunctionType(function.__code__.replace(co_name=name), function.__globals__, name))
