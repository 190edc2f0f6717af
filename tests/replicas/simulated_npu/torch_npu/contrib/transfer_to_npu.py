"""The adaptor: on import, the names of torch.cuda come to mean the NPU, and `cuda` in arguments becomes `npu`.

It wraps only functions that the real one wraps (tests/unit/devices/test_torch_npu_wheel.py compares the lists): calls
that the real one leaves alone must fail here too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

import torch_npu.npu

torch_fn_white_list = [
    "rand",
    "full_like",
    "ones_like",
    "rand_like",
    "randperm",
    "arange",
    "normal",
    "empty_strided",
    "empty_like",
    "scalar_tensor",
    "ones",
    "randn",
    "tensor",
    "as_tensor",
    "zeros",
    "full",
    "empty",
    "zeros_like",
    "randn_like",
    "linspace",
    "load",
]
torch_tensor_fn_white_list = ["new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "to", "pin_memory"]
torch_module_fn_white_list = ["to", "to_empty"]
device_kwargs_list = ["device", "device_type", "map_location", "device_id"]


def _on_npu(value: Any, integers: bool) -> Any:
    if isinstance(value, str):
        return value.replace("cuda", "npu")
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu:0")
    if integers and isinstance(value, int) and not isinstance(value, bool):
        return "npu:0"
    return value


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        integers = function.__name__ in ("to", "to_empty")
        args = (*args[:1], *(_on_npu(each, integers) for each in args[1:])) if args else args
        for name in device_kwargs_list:
            if kwargs.get(name) is not None:
                kwargs[name] = _on_npu(kwargs[name], integers=True)
        return function(*args, **kwargs)

    return call


def _wrap(owner: Any, names: list[str]) -> None:
    for name in names:
        setattr(owner, name, _wrapped(getattr(owner, name)))


def _init() -> None:
    # torch caches at the first call which functions make tensors; the cache must not have the wrappers.
    _device_constructors()
    for name in torch_npu.npu.__all__:
        setattr(torch.cuda, name, getattr(torch_npu.npu, name))
    torch.cuda.default_generators = torch_npu.npu.default_generators  # type: ignore[assignment]
    for name in ("get_rng_state", "set_rng_state"):
        setattr(torch.cuda.random, name, getattr(torch_npu.npu, name))
    _wrap(torch, torch_fn_white_list)
    _wrap(torch.Tensor, torch_tensor_fn_white_list)
    torch.Tensor.cuda = torch.Tensor.npu  # type: ignore[attr-defined,method-assign]
    torch.Tensor.is_cuda = torch.Tensor.is_npu  # type: ignore[attr-defined,assignment]
    _wrap(torch.nn.Module, torch_module_fn_white_list)
    torch.nn.Module.cuda = torch.nn.Module.npu  # type: ignore[attr-defined,method-assign]
    initialize = torch.distributed.init_process_group

    @functools.wraps(initialize)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return initialize(backend.replace("nccl", "hccl") if backend else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group
    torch.jit.script = lambda obj, *args, **kwargs: obj  # type: ignore[assignment]


_init()
