"""The kernels of torch_npu that this project calls: their documented formulas in float32, and their limits.

Signatures are those of `npu_native_functions_by_codegen.yaml` in the wheel of torch-npu 2.13.0, formulas and limits
those of its `_op_plugin_docs.py`. A kernel refuses what the real one refuses. What the real one can do and nobody here
needs raises NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_npu.device import differentiable_kernel, kernel

MASK_SIZE = 2048
LARGEST_HEAD, MOST_HEADS, MOST_GROUPS = 768, 256, 1024
FLOATS = (torch.float16, torch.bfloat16, torch.float32)

Optional = torch.Tensor | None


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise RuntimeError(f"refused by the kernel: {why}")


@differentiable_kernel
def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: Optional = None,
    padding_mask: Optional = None,
    atten_mask: Optional = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Optional = None,
    dropout_mask: Optional = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Any, ...]:
    """Return softmax(mask(scale · (pse + q kᵀ))) v; a mask's 1 hides a key."""
    _refuse(not query.dtype == key.dtype == value.dtype, "query, key and value have one dtype")
    _refuse(query.dtype not in FLOATS, "dtypes are float16, bfloat16 and float32")
    _refuse(padding_mask is not None, "padding_mask is not supported")
    if keep_prob != 1 or prefix or actual_seq_qlen or actual_seq_kvlen or sink is not None:
        raise NotImplementedError
    q, k, v = _heads(query, key, value, head_num, input_layout)
    dim, group = q.shape[-1], head_num // k.shape[1]
    _refuse(not 1 <= head_num <= MOST_HEADS or head_num % k.shape[1] != 0, "heads are a multiple of key heads, to 256")
    _refuse(dim != k.shape[-1] or dim < v.shape[-1] or dim > LARGEST_HEAD, "Dq = Dk, Dk ≥ Dv, 1 to 768")
    _refuse(k.shape[:3] != v.shape[:3], "keys and values have one shape but for the head's dimension")
    scores = q.float() @ k.repeat_interleave(group, dim=1).float().transpose(-1, -2)
    if pse is not None:
        _refuse(pse.dtype != query.dtype, "pse has the dtype of query")
        _refuse(pse.dim() != 4 or pse.shape[0] not in (1, q.shape[0]), "pse is [B or 1, N, Sq or 1, Skv]")
        _refuse(pse.shape[1] != head_num or pse.shape[3] != k.shape[2], "pse is [B or 1, N, Sq or 1, Skv]")
        _refuse(pse.shape[2] not in (1, 1024, q.shape[2]), "pse is [B or 1, N, Sq or 1, Skv]")
        if pse.shape[2] not in (1, q.shape[2]):
            raise NotImplementedError("the compressed form of ALiBi's bias")
        scores = scores + pse.float()
    scores = scores * scale
    hidden = _hidden(atten_mask, sparse_mode, q.shape[2], k.shape[2], pre_tockens, next_tockens)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    largest = scores.amax(dim=-1, keepdim=True)
    exponentials = (scores - largest).exp()
    sums = exponentials.sum(dim=-1, keepdim=True)
    out = (exponentials / sums) @ v.repeat_interleave(group, dim=1).float()
    statistics = (each.expand(*each.shape[:3], 8).contiguous() for each in (largest, sums))
    return _laid_out(out.to(query.dtype), input_layout), *statistics, torch.empty(0), seed, offset, 0


def _heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int, layout: str
) -> tuple[torch.Tensor, ...]:
    """Return query, key and value as [B, N, S, D]."""
    if layout in ("SBH", "BSH"):
        _refuse(query.dim() != 3, f"{layout} has three dimensions")
        dim = query.shape[2] // heads
        groups = key.shape[2] // dim
        parts = (query.unflatten(2, (heads, -1)), key.unflatten(2, (groups, -1)), value.unflatten(2, (groups, -1)))
        order = (1, 2, 0, 3) if layout == "SBH" else (0, 2, 1, 3)
        return tuple(part.permute(order) for part in parts)
    _refuse(layout not in ("BSND", "BNSD", "TND"), f"the layout {layout!r} is none of BSH, SBH, BSND, BNSD, TND")
    if layout == "TND":
        raise NotImplementedError
    _refuse(query.shape[1 if layout == "BNSD" else 2] != heads, "head_num is the number of query heads")
    return tuple(part if layout == "BNSD" else part.transpose(1, 2) for part in (query, key, value))


def _laid_out(out: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "BNSD":
        return out.contiguous()
    if layout == "SBH":
        return out.permute(2, 0, 1, 3).flatten(2).contiguous()
    out = out.transpose(1, 2).contiguous()
    return out.flatten(2) if layout == "BSH" else out


def _hidden(mask: Optional, mode: int, queries: int, keys: int, before: int, after: int) -> Optional:
    """Return the mask as [Sq, Skv], or in a shape that broadcasts with the scores; True hides a key."""
    if mask is None:
        return None
    _refuse(mask.dtype not in (torch.bool, torch.uint8), "a mask is bool or uint8")
    if mode in (2, 3, 4):
        _refuse(mask.shape != (MASK_SIZE, MASK_SIZE), "the compressed mask of modes 2, 3 and 4 is 2048 × 2048")
        _refuse(not torch.equal(mask.bool(), torch.ones_like(mask, dtype=torch.bool).triu(1)), "1 hides what follows")
        # From the upper left corner, or from the lower right one.
        first = 1 if mode == 2 else keys - queries + 1
        later = torch.ones(queries, keys, dtype=torch.bool).triu(first + after if mode == 4 else first)
        return later | torch.ones_like(later).tril(first - before - 2) if mode == 4 else later
    if mode not in (0, 1):
        raise NotImplementedError
    _refuse(mask.shape[-2:] != (queries, keys), "a mask ends in [Sq, Skv]")
    # What the kernel makes of a row that hides all is not documented.
    _refuse(bool(mask.bool().all(dim=-1).any()), "every query sees a key")
    return mask.bool()


@differentiable_kernel
def npu_rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x / rms(x) · gamma, 1 / rms(x))."""
    _refuse(self.dtype not in FLOATS or gamma.dtype != self.dtype, "one dtype: float16, bfloat16 or float32")
    _refuse(not 2 <= self.dim() <= 8 or self.shape[-gamma.dim() :] != gamma.shape, "gamma spans the last dimensions")
    factor = self.float().square().mean(dim=-1, keepdim=True).add(epsilon).rsqrt()
    return (self.float() * factor * gamma.float()).to(self.dtype), factor


@differentiable_kernel
def npu_rotary_mul(
    self: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half", rotate: Optional = None
) -> torch.Tensor:
    """Return r1 · x + r2 · (−second half, first half)."""
    if rotary_mode != "half" or rotate is not None:
        raise NotImplementedError
    _refuse(self.dim() != 4 or self.shape[-1] % 2 != 0 or self.shape[-1] >= 896, "[., ., ., D], D even and below 896")
    _refuse(any(each.dtype != self.dtype for each in (r1, r2)), "one dtype")
    _refuse(r1.shape != r2.shape or r1.dim() != 4 or r1.shape[-1] != self.shape[-1], "cos and sin end in D too")
    batch_and_heads = self.shape[1], self.shape[2]
    _refuse(max(batch_and_heads) >= 1000, "batch and heads below 1000")
    first, second = self.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (r1.float() * self.float() + r2.float() * turned).to(self.dtype)


@differentiable_kernel
def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return silu(first half) · second half."""
    _refuse(self.dtype not in FLOATS or not 1 <= self.dim() <= 8, "one to eight dimensions of floats")
    _refuse(self.shape[dim] % 2 != 0, "two halves")
    first, second = self.float().chunk(2, dim=dim)
    return (torch.nn.functional.silu(first) * second).to(self.dtype)


@kernel
def npu_grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    *,
    bias: Any = None,
    scale: Any = None,
    offset: Any = None,
    antiquant_scale: Any = None,
    antiquant_offset: Any = None,
    per_token_scale: Any = None,
    group_list: Optional = None,
    activation_input: Any = None,
    activation_quant_scale: Any = None,
    activation_quant_offset: Any = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[torch.Tensor]:
    """Return x · weight[e] for the rows of each group e, of one x, one weight and one result."""
    if len(x) != 1 or len(weight) != 1 or group_type != 0 or split_item not in (2, 3) or bias is not None:
        raise NotImplementedError
    rows, weights = x[0], weight[0]
    _refuse(rows.dim() != 2 or weights.dim() != 3 or rows.dtype != weights.dtype, "x [N, I], weight [E, I, O]")
    _refuse(rows.dtype not in FLOATS or rows.shape[1] != weights.shape[1], "x [N, I], weight [E, I, O]")
    _refuse(max(rows.shape[1], weights.shape[2]) >= 65536, "inner dimensions below 65536")
    # x may not be transposed; weight may.
    _refuse(not rows.is_contiguous(), "x is not transposed")
    ends = _ends(group_list, group_list_type, len(weights))
    _refuse(ends[-1] != len(rows), "the groups hold all rows")
    starts = [0, *ends[:-1]]
    parts = [rows[first:last].float() @ part.float() for first, last, part in zip(starts, ends, weights, strict=True)]
    return [torch.cat(parts).to(rows.dtype)]


@kernel
def npu_grouped_matmul_add_(
    self: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> torch.Tensor:
    """Compute self[e] += x[rows of e]ᵀ · weight[rows of e]."""
    _refuse(not transpose_x or transpose_weight or group_type != 2, "xᵀ · weight, grouped by their rows")
    _refuse(self.dtype != torch.float32 or self.dim() != 3, "self is float32 [E, M, N]")
    _refuse(x.dtype != weight.dtype or x.dtype not in FLOATS[:2], "x and weight are float16 or bfloat16")
    ends = _ends(group_list, group_list_type, len(self))
    for first, last, total in zip([0, *ends[:-1]], ends, self, strict=True):
        total += x[first:last].float().t() @ weight[first:last].float()
    return self


@kernel
def npu_convert_weight_to_int4pack(weight: torch.Tensor, inner_k_tiles: int = 0) -> torch.Tensor:
    """Pack codes [K, N] int32 → [K, N / 8] int32; the real order of the eight codes is not documented."""
    _refuse(
        weight.dtype != torch.int32 or weight.dim() != 2 or not weight.is_contiguous(), "int32, two contiguous dims"
    )
    _refuse(weight.shape[1] % 8 != 0, "the last dimension is a multiple of 8")
    _refuse(bool((weight < -8).any() or (weight > 7).any()), "codes from -8 to 7")
    places = torch.arange(0, 32, 4)
    return ((weight.long() & 15).unflatten(1, (-1, 8)) << places).sum(dim=2).to(torch.uint32).view(torch.int32)


@kernel
def npu_weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: Optional = None,
    quant_scale: Optional = None,
    quant_offset: Optional = None,
    bias: Optional = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> torch.Tensor:
    """Return x · ((weight + offset) · scale) of x [M, K], weight [K, N], scales [1 or groups, N]."""
    if quant_scale is not None or bias is not None or weight_dtype is not None:
        raise NotImplementedError
    _refuse(x.dtype not in FLOATS[:2] or antiquant_scale.dtype != x.dtype, "x and scales are of one half precision")
    _refuse(x.dim() != 2 or x.numel() == 0, "x [M, K], not empty")
    if weight.dtype == torch.int32:
        codes = (weight.view(torch.uint32).long()[..., None] >> torch.arange(0, 32, 4)) & 15
        weight = (codes - 16 * (codes > 7)).flatten(1)
    else:
        _refuse(weight.dtype != torch.int8, "weights are int8, or int32 of eight codes")
    inputs, group = len(weight), antiquant_group_size
    _refuse(inputs != x.shape[1], "x [M, K], weight [K, N]")
    _refuse(group != 0 and (group % 32 != 0 or not 32 <= group < inputs), "groups of 32 to K - 1, in steps of 32")
    _refuse(len(antiquant_scale) != (-(-inputs // group) if group else 1), "a row of scales for each group")
    _refuse(antiquant_offset is not None and antiquant_offset.shape != antiquant_scale.shape, "offsets as scales")
    of_input = torch.arange(inputs) // (group or inputs)
    wide = weight.float() if antiquant_offset is None else weight.float() + antiquant_offset.float()[of_input]
    return (x.float() @ (wide * antiquant_scale.float()[of_input])).to(x.dtype)


def _ends(group_list: Optional, kind: int | None, groups: int) -> list[int]:
    _refuse(group_list is None or group_list.dtype != torch.int64 or group_list.dim() != 1, "group_list is int64 [E]")
    assert group_list is not None
    _refuse(not 1 <= groups <= MOST_GROUPS or len(group_list) != groups, "one entry a group, 1024 at most")
    if kind != 0:
        raise NotImplementedError
    ends = [int(end) for end in group_list.tolist()]
    _refuse(any(end < before for before, end in zip([0, *ends], ends, strict=False)), "ends of groups never fall")
    return ends
