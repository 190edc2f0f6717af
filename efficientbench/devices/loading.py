"""Speed up the imports of torch and Megatron, most of a rank's start."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage inside this block, which imports much; freeze it then, so that training does not scan it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def absent(*names: str) -> Iterator[None]:
    """Let modules that are not yet loaded seem not installed inside this block."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


@contextlib.contextmanager
def frames_by_name() -> Iterator[None]:
    """Find a frame's module by its name inside this block, not by its file.

    torch asks for it at each operator that it registers, and `inspect` resolves every loaded module's file then.
    """
    by_file = inspect.getmodule

    def find(object: Any, _filename: str | None = None) -> ModuleType | None:
        if inspect.isframe(object):
            return sys.modules.get(object.f_globals.get("__name__", ""))
        return by_file(object, _filename)

    inspect.getmodule = find
    try:
        yield
    finally:
        inspect.getmodule = by_file


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import torch and Megatron inside this block: it more than halves their time, in four ways.

    Garbage collection is off, see `without_collection`, and frames are found by name, see `frames_by_name`.
    `torch.compile` compiles a function at its first call: Megatron decorates functions with it as it is imported,
    which loads the compiler, and calls few of them. W&B, which Megatron imports wherever it is installed, seems absent:
    only our sink sends to it, and imports it later. TRL must not be imported here: it asks again later whether W&B is
    installed, and expects the module that it has imported then. Import Megatron inside `absent(*device.needless)`: it
    loads Triton, too.
    """
    if "megatron.core" in sys.modules:
        # What is to be collected since then would be frozen, too.
        yield
        return
    with absent("wandb"), without_collection(), frames_by_name():
        import torch

        compile_now = torch.compile
        when_called = functools.partial(_when_called, compile_now)
        torch.compile = when_called  # type: ignore[assignment]
        try:
            yield
        finally:
            # A vendor's package, as torch_npu, may have patched it during the block: then that patch stays.
            if torch.compile is when_called:
                torch.compile = compile_now


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
