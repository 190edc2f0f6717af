"""The few repairs that megatron-core 0.16.1 itself needs, each with its reason."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.optimizer import clip_grads
from megatron.core.tensor_parallel import layers, mappings
from megatron.core.transformer.moe import moe_layer, moe_utils, token_dispatcher
from megatron.core.utils import local_multi_tensor_l2_norm
from packaging.version import Version
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.distributed_c10d import _CoalescingManager

from efficientbench.devices.cpu import CPU
from efficientbench.model import token_dispatch
from efficientbench.model.kernels import product
from efficientbench.model.kernels.product import linear_of_few
from efficientbench.model.kernels.quantized import QuantizedWeight
from efficientbench.model.kernels.weight_gradient import add_product


def apply() -> None:
    """Repair megatron-core, once per process, before a model is built."""
    if mappings._reduce is _reduce_contiguous:
        return
    mappings._reduce = _reduce_contiguous
    if Version(torch.__version__) < Version("2.8"):
        mappings._reduce_scatter_along_first_dim = _reduce_scatter_parts
    layers.get_tensor_model_parallel_group_if_none = _tensor_parallel_group
    _provide_weight_gradient_accumulation()
    layers.LinearWithGradAccumulationAndAsyncCommunication = _LinearWithBias
    _spare_collectives_of_one_rank()
    _spare_autograd_functions()
    if clip_grads.l2_norm_impl is local_multi_tensor_l2_norm:
        clip_grads.l2_norm_impl = _l2_norm
        clip_grads.multi_tensor_scale_impl = _scale_in_place
    token_dispatcher.maybe_move_tensor_to_cpu = _move_to_host
    # The original waits for the device twice to learn how many rows it selected, a number that the host knows.
    token_dispatcher.permute = token_dispatch.permute
    moe_layer.MoEAlltoAllTokenDispatcher = token_dispatch.dispatcher
    if not hasattr(moe_utils, "te_general_gemm"):
        # Without Transformer Engine the router reads a name that was never bound; it takes None as "not installed".
        moe_utils.te_general_gemm = None


_reduce = mappings._reduce


def _reduce_contiguous(input_: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    # The original all-reduces a contiguous copy of a non-contiguous input and returns the input, unreduced.
    return _reduce(input_.contiguous(), group)


_reduce_scatter = mappings._reduce_scatter_along_first_dim


def _reduce_scatter_parts(
    input_: torch.Tensor,
    group: ProcessGroup,
    input_split_sizes: list[int] | None = None,
    use_global_buffer: bool = False,
) -> torch.Tensor:
    # Before torch 2.8, gloo cannot reduce-scatter unequal parts, which experts split over tensor-parallel ranks need.
    if input_split_sizes is None or group.size() == 1 or dist.get_backend(group) != CPU.backend:
        return _reduce_scatter(input_, group, input_split_sizes, use_global_buffer)
    return _reduce(input_.clone(memory_format=torch.contiguous_format), group).split(input_split_sizes)[group.rank()]


_group_if_none = layers.get_tensor_model_parallel_group_if_none


def _tensor_parallel_group(
    tp_group: ProcessGroup | None, is_expert: bool = False, check_initialized: bool = True
) -> ProcessGroup | None:
    # The original warns when it gets no group, as in every call of a row-parallel layer, and torch.compile cannot trace
    # a warning.
    if tp_group is None and not is_expert and parallel_state.is_initialized():
        return parallel_state.get_tensor_model_parallel_group(check_initialized=check_initialized)
    return _group_if_none(tp_group, is_expert, check_initialized)


_maybe_move_tensor_to_cpu = moe_utils.maybe_move_tensor_to_cpu


def _move_to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    # The original leaves tensors of other devices than CUDA's unchanged, and the experts' all-to-all then gets tensors
    # instead of numbers of rows.
    moved = _maybe_move_tensor_to_cpu(tensor, as_numpy, record_stream)
    if not isinstance(moved, torch.Tensor):
        return moved
    moved = moved.cpu()
    return moved.numpy() if as_numpy else moved


def _provide_weight_gradient_accumulation() -> None:
    # Megatron's linear layers can add weight gradients to `main_grad` in the matmul itself, but only through Apex's
    # compiled extension. An accumulating matmul does the same on every device, and saves a pass over all gradients.
    if layers._grad_accum_fusion_available:
        return
    layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(
        wgrad_gemm_accum_fp32=_accumulate_weight_gradient, wgrad_gemm_accum_fp16=_accumulate_weight_gradient
    )
    layers._grad_accum_fusion_available = True


def _accumulate_weight_gradient(input_: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
    """Add grad_output [N, O]ᵀ · input [N, I] to main_grad [O, I], whose dtype may be wider than the factors'."""
    add_product(main_grad, grad_output, input_)


class _LinearWithBias(layers.LinearWithGradAccumulationAndAsyncCommunication):  # type: ignore[misc]
    # The original adds the bias in a separate pass; here the product adds it, by the faster library. `ctx` holds all
    # that the original's backward pass reads.
    @staticmethod
    @layers.custom_fwd
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        gradient_accumulation_fusion: bool,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        grad_output_buffer: list[torch.Tensor] | None,
        wgrad_deferral_limit: int | None,
        tp_group: ProcessGroup,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.main_grad = getattr(weight, "main_grad", None) if gradient_accumulation_fusion else None
        ctx.use_bias = bias is not None
        ctx.gradient_accumulation_fusion = gradient_accumulation_fusion
        ctx.allreduce_dgrad, ctx.sequence_parallel, ctx.tp_group = allreduce_dgrad, sequence_parallel, tp_group
        ctx.grad_output_buffer, ctx.wgrad_deferral_limit = grad_output_buffer, wgrad_deferral_limit
        if sequence_parallel:
            shape = [input.shape[0] * tp_group.size(), *input.shape[1:]]
            gathered = layers.get_global_memory_buffer().get_tensor(shape, input.dtype, "mpu")
            layers.dist_all_gather_func(gathered, input, group=tp_group)
            input = gathered
        return product.linear(input, weight, bias)


def _spare_collectives_of_one_rank() -> None:
    # With a single data-parallel rank, the distributed optimizer gathers and scatters buffers onto themselves; gloo
    # copies all parameters for that. Without these collectives there is nothing to coalesce, which torch 2.6 refuses.
    coalesce: Callable[..., AbstractContextManager[object]] = param_and_grad_buffer._coalescing_manager
    gather: Callable[..., object] = param_and_grad_buffer.dist_all_gather_func
    scatter: Callable[..., object] = param_and_grad_buffer.dist_reduce_scatter_func

    def all_gather(output: torch.Tensor, input_: torch.Tensor, group: ProcessGroup, async_op: bool) -> object:
        return None if _same(output, input_, group) else gather(output, input_, group=group, async_op=async_op)

    def reduce_scatter(
        output: torch.Tensor, input_: torch.Tensor, op: ReduceOp, group: ProcessGroup, async_op: bool
    ) -> object:
        return None if _same(output, input_, group) else scatter(output, input_, op=op, group=group, async_op=async_op)

    def coalescing(group: ProcessGroup, async_ops: bool) -> AbstractContextManager[object]:
        return nullcontext(_CoalescingManager()) if group.size() == 1 else coalesce(group, async_ops=async_ops)

    param_and_grad_buffer._coalescing_manager = coalescing
    param_and_grad_buffer.dist_all_gather_func = all_gather
    param_and_grad_buffer.dist_reduce_scatter_func = reduce_scatter


def _spare_autograd_functions() -> None:
    # Without gradients a linear layer is only a product. In a small model's decoding step, the autograd functions
    # around it take longer than the product.
    copy: Callable[..., torch.Tensor] = layers.copy_to_tensor_model_parallel_region
    reduce: Callable[..., torch.Tensor] = layers.reduce_from_tensor_model_parallel_region

    def copied(input_: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        return copy(input_, group=group) if torch.is_grad_enabled() else input_

    def reduced(input_: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        return reduce(input_, group=group) if torch.is_grad_enabled() else _reduce_contiguous(input_, group)

    layers.copy_to_tensor_model_parallel_region, layers.reduce_from_tensor_model_parallel_region = copied, reduced
    for kind in (layers.ColumnParallelLinear, layers.RowParallelLinear):
        kind._forward_impl = _product(kind._forward_impl)


def _product(differentiable: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def product(
        layer: torch.nn.Module,
        *,
        input: torch.Tensor,
        weight: torch.Tensor | QuantizedWeight,
        bias: torch.Tensor | None,
        sequence_parallel: bool,
        **others: Any,
    ) -> torch.Tensor:
        if isinstance(weight, QuantizedWeight):
            quantized: torch.Tensor = weight(input)
            return quantized if bias is None else quantized + bias
        # With sequence parallelism the original gathers the input first.
        if torch.is_grad_enabled() or sequence_parallel:
            return differentiable(
                layer, input=input, weight=weight, bias=bias, sequence_parallel=sequence_parallel, **others
            )
        return linear_of_few(input, weight, bias)

    return product


def _same(output: torch.Tensor, input_: torch.Tensor, group: ProcessGroup) -> bool:
    return group.size() == 1 and output.data_ptr() == input_.data_ptr()


def _l2_norm(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: list[list[torch.Tensor]], per_tensor: bool
) -> tuple[torch.Tensor, None]:
    # Without Apex and Transformer Engine, Megatron's own norm waits for the device once for each tensor.
    return torch.stack(torch._foreach_norm(tensor_lists[0])).norm().reshape(1), None


def _scale_in_place(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: list[list[torch.Tensor]], scale: float
) -> None:
    # Megatron's own function makes a scaled copy of each gradient, and copies it back.
    sources, targets = tensor_lists
    for source, target in zip(sources, targets, strict=True):
        torch.mul(source, scale, out=target)
