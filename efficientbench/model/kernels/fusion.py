"""torch.compile for small functions: a few elementwise operations and a reduction become one kernel.

Each function is compiled alone, without the model around it. So collectives, recomputation and gradients that are added
in place stay unchanged, and each compiled function is tested against its uncompiled form.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def fused(function: Callable[..., Any], widths: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Return `function` compiled, one copy in a process for each value of `widths`.

    The first shape of a copy gets its own kernel, a second shape a kernel for every size. Layers of different widths
    would be such shapes, hence the copies. Without fullgraph=True, torch's own kernels serve after too many shapes.

    Args:
        function: a function of tensors, defined at a module's top level.
        widths: the sizes in which a model's layers differ.
    """
    # The compiler knows a function by its code's file, line and name: a copy needs a name of its own.
    name = "_".join([function.__name__, *map(str, widths)])
    return torch.compile(types.FunctionType(function.__code__.replace(co_name=name), function.__globals__, name))
