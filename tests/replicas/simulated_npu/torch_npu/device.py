"""Tensors of device type `npu` that the CPU keeps and computes.

They use PyTorch's hooks for backends in Python. Each tensor wraps one of the CPU, on which operators run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _device
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

TAKES_HOST_TENSORS = {
    "aten::copy_",
    "aten::_to_copy",
    "aten::index",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::index_put",
}
"""Operators that a device runs though an argument lies on the host."""


class NpuTensor(torch.Tensor):
    """A tensor on `npu:0`."""

    held: torch.Tensor
    """The CPU tensor with its content."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> NpuTensor:
        wrapper: NpuTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="npu:0",
        )
        wrapper.held = held
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})

    @property
    def data(self) -> NpuTensor:  # type: ignore[override]
        return NpuTensor(self.held.detach())

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        # torch alone would replace shape and dtype, but leave `held` as it was.
        if not isinstance(other, NpuTensor):
            raise RuntimeError("incompatible tensor type: a tensor of the host cannot become the data of one on npu")
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.held = other.held

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert npu:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"NpuTensor({self.held})"


def run(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator on the CPU tensors of its arguments; its results are on the device if the arguments are."""
    flat, structure = tree_flatten((args, dict(kwargs)))
    wrappers = {id(each.held): each for each in flat if isinstance(each, NpuTensor)}
    name = function._schema.name
    if wrappers and name not in TAKES_HOST_TENSORS and not name.startswith(("aten::set_", "profiler::")):
        _refuse_host_tensors(name, flat)
    if name == "aten::_to_copy" and wrappers and kwargs.get("dtype") is torch.float64 and kwargs.get("device") is None:
        # Like the real device, which only warns of it.
        kwargs = {**kwargs, "dtype": torch.float32}
        flat, structure = tree_flatten((args, kwargs))
    if name.startswith("c10d::"):
        from torch_npu.hccl import check

        check(name, [each for each in flat if isinstance(each, NpuTensor)])
    held = [each.held if isinstance(each, NpuTensor) else each for each in flat]
    args, options = tree_unflatten(held, structure)
    wanted = options.get("device")
    if wanted is not None:
        options["device"] = torch.device("cpu")
    if "pin_memory" in options:
        options["pin_memory"] = False
    to_host = wanted is not None and torch.device(wanted).type == "cpu"
    result = function(*args, **options)
    if to_host:
        return result
    for wrapper in wrappers.values():
        if wrapper.shape != wrapper.held.shape:
            raise NotImplementedError(f"{name} has resized a tensor, which its wrapper does not follow")
    parts, structure = tree_flatten(result)
    # A tensor that the operator changed in place keeps its wrapper.
    return tree_unflatten([wrappers.get(id(part), _on_device(part)) for part in parts], structure)


def _on_device(part: Any) -> Any:
    return NpuTensor(part) if type(part) is torch.Tensor else part


def _refuse_host_tensors(name: str, flat: list[Any]) -> None:
    for each in flat:
        if isinstance(each, torch.Tensor) and not isinstance(each, NpuTensor) and each.dim():
            raise RuntimeError(
                f"{name}: expected all tensors to be on the same device, but found at least two devices, npu:0 and "
                f"{each.device} (a tensor of shape {list(each.shape)})"
            )


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of CPU tensors a kernel of the device without a gradient, on tensors of `npu`."""

    @functools.wraps(function)
    def launch(*args: Any, **kwargs: Any) -> Any:
        flat, structure = tree_flatten((args, kwargs))
        if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in flat):
            raise RuntimeError(f"{function.__name__} has no gradient: torch_npu registers none")
        args, kwargs = tree_unflatten(_held(function, flat), structure)
        parts, structure = tree_flatten(function(*args, **kwargs))
        return tree_unflatten([_on_device(part) for part in parts], structure)

    return launch


def differentiable_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function a kernel with a gradient of its first result, as torch_npu registers it for the real one."""

    @functools.wraps(function)
    def launch(*args: Any, **kwargs: Any) -> Any:
        flat, structure = tree_flatten((args, kwargs))
        return _Differentiable.apply(function, structure, *flat)

    return launch


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], structure: Any, *flat: Any) -> Any:
        ctx.function, ctx.structure = function, structure
        ctx.held = _held(function, list(flat))
        args, kwargs = tree_unflatten(ctx.held, structure)
        result = function(*args, **kwargs)
        if not isinstance(result, tuple):
            return _on_device(result)
        wrapped = tuple(_on_device(part) for part in result)
        ctx.mark_non_differentiable(*(part for part in wrapped[1:] if isinstance(part, torch.Tensor)))
        return wrapped

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        wanted = [index for index, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        inputs = list(ctx.held)
        for index in wanted:
            inputs[index] = inputs[index].detach().requires_grad_()
        with torch.enable_grad():
            args, kwargs = tree_unflatten(inputs, ctx.structure)
            result = ctx.function(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        found = torch.autograd.grad(first, [inputs[index] for index in wanted], grads[0].held)
        given: list[Any] = [None] * len(inputs)
        for index, grad in zip(wanted, found, strict=True):
            given[index] = NpuTensor(grad)
        return None, None, *given


def _held(function: Callable[..., Any], flat: list[Any]) -> list[Any]:
    for each in flat:
        if isinstance(each, torch.Tensor) and not isinstance(each, NpuTensor):
            raise RuntimeError(f"{function.__name__}: expected a tensor on npu, got one on {each.device}")
    return [each.held if isinstance(each, NpuTensor) else each for each in flat]


def _run_any(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return run(operator, args, kwargs)


_libraries: list[torch.library.Library] = []
"""Libraries kept alive, since torch drops the registrations of one that is collected."""


def register(module: Any) -> None:
    """Make the device type known to torch, with `module` as `torch.npu`."""
    _setup_privateuseone_for_python_backend(rename="npu", backend_module=module)
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda operator, *args, **kwargs: run(operator, args, kwargs), "PrivateUse1")
    # torch's own arange would resize an empty tensor, which a wrapper cannot follow.
    aten = torch.library.Library("aten", "IMPL")
    for overload in ("default", "start", "start_step"):
        operator = getattr(torch.ops.aten.arange, overload)
        aten.impl(operator, functools.partial(_run_any, operator), "PrivateUse1")
    _libraries.extend([library, aten])
    _let_torch_make_tensors_from_lists()


def _let_torch_make_tensors_from_lists() -> None:
    # torch.tensor(…, device="npu") writes into the storage, which a wrapper lacks.
    make = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        # Not torch.get_default_device, which itself makes a tensor.
        device = device if device is not None else _device.CURRENT_DEVICE
        if device is None or torch.device(device).type != "npu":
            return make(data, device=device, **options)
        requires_grad = options.pop("requires_grad", False)
        return make(data, device="cpu", **options).to(device).requires_grad_(requires_grad)

    torch.tensor = tensor  # type: ignore[assignment]
