"""torch_npu's fused kernels on Ascend NPUs. Tested with their formulas in their place, never on an NPU.

Signatures: `npu_native_functions_by_codegen.yaml`, meaning and limits: `_op_plugin_docs.py`, both in the wheel of
torch-npu 2.13.0. torch_npu registers the gradients of all of them but the grouped matmuls.

S = sequence, Q = queries, B = batch, D and E = head dimensions of keys and of values.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

import torch
import torch.nn.functional as F

from efficientbench.devices.npu import FUSED, family

ATTENTION = "torch_npu npu_fusion_attention"
RMS_NORM = "torch_npu npu_rms_norm"
ROTARY = "torch_npu npu_rotary_mul"
SWIGLU = "torch_npu npu_swiglu"
GROUPED_MATMUL = "torch_npu npu_grouped_matmul"
GROUPED_WEIGHT_GRADIENT = "torch_npu npu_grouped_matmul_add_"
PARTS = ("attention", "norm", "swiglu", "grouped_mm")
"""Parts of every model, as the record names them, that these kernels compute."""
UNDOCUMENTED = f"torch_npu's fused kernels are documented for Ascend {' and '.join(FUSED)}"
"""Why they do not run on another NPU."""

MASK_SIZE = 2048
LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL = 2, 3
"""`sparse_mode`: causal from the first query and key, or from the last ones; equal where there are as many of both."""
BIAS_ROWS = 1024
"""Queries whose bias exists at once. With more, the kernel takes a bias for the compressed form of ALiBi's."""


def torch_npu() -> ModuleType:
    """Return the vendor's package, which holds the kernels."""
    return importlib.import_module("torch_npu")


@functools.cache
def chip_family() -> str | None:
    """Return the family of this machine's NPU; None without one, or for an unknown one."""
    if importlib.util.find_spec("torch_npu") is None:
        return None
    return family(str(torch_npu().npu.get_device_name(0)))


def serves(device_type: str) -> bool:
    """Return whether the fused kernels are documented for this machine's devices of the type."""
    return device_type == "npu" and chip_family() in FUSED


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute kernels.causal_attention.causal_attention."""
    return _fusion_attention(query, key, value, scale)


def biased_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor
) -> torch.Tensor:
    """Compute kernels.biased_attention.biased_causal_attention, without a gradient for the bias."""
    heads, sequence = bias.shape
    # The kernel scales the sum of products and bias. From the largest distance down to 0, then what the mask hides.
    by_distance = (bias.detach().float() / scale).to(query.dtype)
    falling = F.pad(by_distance.flip(1), (0, BIAS_ROWS - 1))
    outputs = []
    for first in range(0, sequence, BIAS_ROWS):
        last = min(first + BIAS_ROWS, sequence)
        # Seen from the last query up, distances fall by one along rows and along columns.
        upwards = falling.as_strided((heads, last - first, last), (falling.stride(0), 1, 1), sequence - last)
        pse = upwards.flip(1)[None]
        outputs.append(_fusion_attention(query[first:last], key[:last], value[:last], scale, pse))
    return torch.cat(outputs)


def _fusion_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, pse: torch.Tensor | None = None
) -> torch.Tensor:
    """Attend: query [Q, B, heads, D], key [S, B, groups, D], value [S, B, groups, E] → [Q, B, heads · E].

    `pse` [1, heads, Q, S] is what the kernel calls a bias, which it scales with the products.
    """
    out: torch.Tensor = torch_npu().npu_fusion_attention(
        query.flatten(2),
        key.flatten(2),
        value.flatten(2),
        query.shape[2],
        "SBH",
        pse=pse,
        atten_mask=_compressed_causal_mask(query.device),
        scale=scale,
        sparse_mode=LEFT_UP_CAUSAL if query.shape[0] == key.shape[0] else RIGHT_DOWN_CAUSAL,
    )[0]
    return out


@functools.cache
def _compressed_causal_mask(device: torch.device) -> torch.Tensor:
    """Return [2048, 2048], True hides: the kernel reads no more of a causal mask, whatever the sequence's length."""
    return torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.bool, device=device).triu(1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Compute kernels.norm.rms_norm."""
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    out: torch.Tensor = torch_npu().npu_rms_norm(x, weight, epsilon=epsilon)[0]
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Compute kernels.rope._rotate, without a gradient."""
    width = 2 * cos.shape[-1]
    cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)
    if width == x.shape[-1]:
        whole: torch.Tensor = torch_npu().npu_rotary_mul(x, cos, sin)
        return whole
    kept, turned = x.split([x.shape[-1] - width, width], dim=-1)
    return torch.cat([kept, torch_npu().npu_rotary_mul(turned.contiguous(), cos, sin)], dim=-1)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Compute kernels.swiglu.swiglu."""
    out: torch.Tensor = torch_npu().npu_swiglu(gate_up, dim=-1)
    return out


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Compute kernels.grouped_mm.grouped_mm for at least one row; `ends` [E]: the row after each group's last."""
    # One tensor of rows, one of weights and one of results, cut along the rows at the groups' ends.
    out: list[torch.Tensor] = torch_npu().npu_grouped_matmul(
        [x.contiguous()], [weights], group_list=ends.long(), split_item=2, group_type=0, group_list_type=0
    )
    return out[0]


def adds_weight_gradient(device_type: str, dtype: torch.dtype, sum_dtype: torch.dtype) -> bool:
    """Return whether `accumulate_weight_gradient` takes these dtypes; older versions of torch_npu do not have it."""
    halves = dtype in (torch.bfloat16, torch.float16) and sum_dtype == torch.float32
    return serves(device_type) and halves and hasattr(torch_npu(), "npu_grouped_matmul_add_")


def accumulate_weight_gradient(
    x: torch.Tensor, grad_out: torch.Tensor, ends: torch.Tensor, gradient: torch.Tensor
) -> None:
    """Compute kernels.grouped_mm.accumulate_weight_gradient, for what `adds_weight_gradient` and at least one row."""
    torch_npu().npu_grouped_matmul_add_(gradient, grad_out.contiguous(), x, ends.long())
