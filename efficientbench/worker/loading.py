"""Loading torch and the engine: most of the time that a rank takes to start."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For the imports of torch and megatron, which take half their time in it.

    To look through all that is imported for garbage, again and again, is a quarter of it: nothing is looked through
    here, and what is there in the end stays, and is not looked through in training either. Another is the compiler,
    which megatron loads by handing functions to `torch.compile` as they are defined: here they are compiled when they
    are first called, which few ever are.
    """
    gc.disable()
    import torch

    compile_now = torch.compile
    when_called = functools.partial(_when_called, compile_now)
    torch.compile = when_called  # type: ignore[assignment]
    try:
        yield
    finally:
        if torch.compile is when_called:  # and not what a vendor's package has put there meanwhile
            torch.compile = compile_now
        gc.freeze()
        gc.enable()


def _when_called(
    compile_now: Callable[..., Any], function: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    if function is None:
        return functools.partial(_when_called, compile_now, **options)
    compiled = functools.cache(lambda: compile_now(function, **options))

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return compiled()(*arguments, **named)

    return call
