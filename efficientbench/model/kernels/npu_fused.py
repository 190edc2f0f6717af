"""torch_npu's fused kernels on Ascend NPUs. Tests replace them by their formulas; they never ran on an NPU.

The wheel of torch-npu 2.13.0 has their signatures in `npu_native_functions_by_codegen.yaml`, their meaning and limits
in `_op_plugin_docs.py`. torch_npu registers gradients for all of them except the grouped matmuls.

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
"""The model parts that these kernels compute, by their names in the record."""
UNDOCUMENTED = f"torch_npu's fused kernels are documented for Ascend {' and '.join(FUSED)}"
"""The reason why the fused kernels do not run on another NPU."""

MASK_SIZE = 2048
WHOLE_MASK, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND = 1, 2, 3, 4
"""Values of `sparse_mode`: a mask of all queries by all keys; causal, aligned at the first query and key; causal,
aligned at the last ones (the same for equal numbers); causal with `pre_tockens` keys before a query."""
BIAS_ROWS = 1024
"""Queries whose bias exists at once. The kernel takes a bias with more rows for ALiBi's compressed form."""


def torch_npu() -> ModuleType:
    """Return the vendor's package, which has the kernels."""
    return importlib.import_module("torch_npu")


@functools.cache
def chip_family() -> str | None:
    """Return the family of this machine's NPU; None without an NPU, or for an unknown chip."""
    if importlib.util.find_spec("torch_npu") is None:
        return None
    return family(str(torch_npu().npu.get_device_name(0)))


def serves(device_type: str) -> bool:
    """Return whether the fused kernels are documented for this machine's devices of the type."""
    return device_type == "npu" and chip_family() in FUSED


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, pse: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute kernels.causal_attention.causal_attention: query [Q, B, heads, D], … → [Q, B, heads · E].

    `pse`: a bias [1, heads, Q, S], which the kernel scales together with the products; None: no bias.
    """
    return torch_npu().npu_fusion_attention(
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


def biased_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor
) -> torch.Tensor:
    """Compute kernels.biased_attention.biased_causal_attention, without a gradient for the bias."""
    heads, sequence = bias.shape
    # Divided, because the kernel scales the sum of products and bias. `falling` has the largest distance first; behind
    # distance 0 it has entries that the mask hides.
    by_distance = (bias.detach().float() / scale).to(query.dtype)
    falling = F.pad(by_distance.flip(1), (0, BIAS_ROWS - 1))
    outputs = []
    for first in range(0, sequence, BIAS_ROWS):
        last = min(first + BIAS_ROWS, sequence)
        # With the last query first, distances fall by one along rows and along columns.
        upwards = falling.as_strided((heads, last - first, last), (falling.stride(0), 1, 1), sequence - last)
        pse = upwards.flip(1)[None]
        outputs.append(causal_attention(query[first:last], key[:last], value[:last], scale, pse))
    return torch.cat(outputs)


def range_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to the latest `window` keys, the query's own included, or to the keys that `mask` does not hide.

    Args:
        query: [B, Q, heads, D]
        key: [B, S, groups, D]
        value: [B, S, groups, D]
        scale: factor on the scores.
        window: how many keys a query sees, if there are as many queries as keys; None: those that `mask` shows.
        mask: [Q, S], True hides a key, and every row shows at least one; None: `window` decides.

    Returns:
        The output [B, Q, heads, D] and the logarithms of the softmax's sums, [B, Q, heads] in float32, not
        differentiable.
    """
    out, largest, sums = torch_npu().npu_fusion_attention(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        query.shape[2],
        "BSND",
        atten_mask=_compressed_causal_mask(query.device) if mask is None else mask,
        scale=scale,
        pre_tockens=2**31 - 1 if window is None else window - 1,
        next_tockens=0,
        sparse_mode=WHOLE_MASK if window is None else BAND,
    )[:3]
    # The kernel returns eight copies of each statistic, side by side.
    log_sums = largest.detach()[..., 0] + sums.detach()[..., 0].log()
    return out, log_sums.transpose(1, 2)


@functools.cache
def _compressed_causal_mask(device: torch.device) -> torch.Tensor:
    """Return [2048, 2048], True hides a key: the kernel reads a causal mask of this size for any sequence length."""
    return torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.bool, device=device).triu(1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Compute kernels.norm.rms_norm."""
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    return torch_npu().npu_rms_norm(x, weight, epsilon=epsilon)[0]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Compute kernels.rope._rotate, without a gradient."""
    width = 2 * cos.shape[-1]
    cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)
    if width == x.shape[-1]:
        return torch_npu().npu_rotary_mul(x, cos, sin)
    kept, turned = x.split([x.shape[-1] - width, width], dim=-1)
    return torch.cat([kept, torch_npu().npu_rotary_mul(turned.contiguous(), cos, sin)], dim=-1)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Compute kernels.swiglu.swiglu."""
    return torch_npu().npu_swiglu(gate_up, dim=-1)


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Compute kernels.grouped_mm.grouped_mm for at least one row; `ends` [E]: the row after each group's last."""
    # The options mean: one tensor each of rows, weights and results, with rows cut at the groups' ends.
    out: list[torch.Tensor] = torch_npu().npu_grouped_matmul(
        [x.contiguous()], [weights], group_list=ends.long(), split_item=2, group_type=0, group_list_type=0
    )
    return out[0]


def adds_weight_gradient(device_type: str, dtype: torch.dtype, sum_dtype: torch.dtype) -> bool:
    """Return whether `accumulate_weight_gradient` takes these dtypes; older versions of torch_npu lack its kernel."""
    halves = dtype in (torch.bfloat16, torch.float16) and sum_dtype == torch.float32
    return serves(device_type) and halves and hasattr(torch_npu(), "npu_grouped_matmul_add_")


def accumulate_weight_gradient(
    x: torch.Tensor, grad_out: torch.Tensor, ends: torch.Tensor, gradient: torch.Tensor
) -> None:
    """Compute kernels.grouped_mm.accumulate_weight_gradient for at least one row, if `adds_weight_gradient`."""
    torch_npu().npu_grouped_matmul_add_(gradient, grad_out.contiguous(), x, ends.long())
