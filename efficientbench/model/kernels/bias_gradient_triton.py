"""The gradient of causal attention's bias by distance: a Triton kernel for NVIDIA GPUs.

It was compared with autograd's gradient in Triton's interpreter, and compiled for GPUs that were not at hand.

The kernel recomputes scores, tile by tile. The tiles of a band, BLOCK queries by BLOCK keys at the same distance in
blocks, have equal distances at equal positions. A program sums the tiles in registers, and their diagonals at its end.

S = sequence, B = batch, D = head dimension; a band is numbered by its distance in blocks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 64
WARPS = 4
LEAST_DIM = 16
"""The narrowest matrices that Triton multiplies."""
STAGES = {2: 2, 4: 1}
"""Pipeline stages (tiles loaded ahead) by bytes of an element: as many as an H200's shared memory holds."""


@triton.jit
def _tile(pointer, rows, dims, row_stride, row_count, dim_count):  # type: ignore[no-untyped-def]
    """Load rows of a head, [BLOCK, D]; zeros beyond the last row and dimension."""
    mask = (rows < row_count)[:, None] & (dims < dim_count)[None, :]
    return tl.load(pointer + rows.to(tl.int64)[:, None] * row_stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _sum_band(  # type: ignore[no-untyped-def]
    grad, out, query, key, value, bias, log_sums, sums,
    scale, sequence, heads, group, dim, value_dim,
    grad_s, grad_b, grad_h, out_s, out_b, out_h, query_s, query_b, query_h, key_s, key_b, key_h,
    value_s, value_b, value_h, bias_h,
    BLOCK: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """Write one head's sums from one band: those of the band's distances, then those of the band before it."""
    band, batch_head = tl.program_id(0), tl.program_id(1)
    batch, head = batch_head // heads, batch_head % heads
    place, dims, value_dims = tl.arange(0, BLOCK), tl.arange(0, DIM), tl.arange(0, VALUE_DIM)
    grad += batch * grad_b + head * grad_h
    out += batch * out_b + head * out_h
    query += batch * query_b + head * query_h
    key += batch * key_b + head // group * key_h
    value += batch * value_b + head // group * value_h
    log_sums += batch_head.to(tl.int64) * sequence
    distance = band * BLOCK + place[:, None] - place[None, :]
    exists = (distance >= 0) & (distance < sequence)
    tile_bias = tl.load(bias + head * bias_h + distance, mask=exists, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(band * BLOCK, sequence, BLOCK):
        i = start + place
        j = i - band * BLOCK
        queries = _tile(query, i, dims, query_s, sequence, dim)
        keys = _tile(key, j, dims, key_s, sequence, dim)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale + tile_bias
        row_sums = tl.load(log_sums + i, mask=i < sequence, other=0.0)
        probabilities = tl.where(exists & (i < sequence)[:, None], tl.exp(scores - row_sums[:, None]), 0.0)
        grads = _tile(grad, i, value_dims, grad_s, sequence, value_dim)
        values = _tile(value, j, value_dims, value_s, sequence, value_dim)
        outs = _tile(out, i, value_dims, out_s, sequence, value_dim)
        product = tl.sum(grads.to(tl.float32) * outs.to(tl.float32), axis=1)
        grad_probabilities = tl.dot(grads, tl.trans(values), input_precision="ieee")
        total += probabilities * (grad_probabilities - product[:, None])
    # Column c of the skewed tile has distance c: from row c on that of this band, above it that of the band before.
    turned = (place[:, None] - place[None, :]) & (BLOCK - 1)
    skewed = tl.gather(total, turned, axis=1)
    own = place[:, None] >= place[None, :]
    sums += (batch_head.to(tl.int64) * tl.num_programs(0) + band) * 2 * BLOCK + place
    tl.store(sums, tl.sum(tl.where(own, skewed, 0.0), axis=0))
    tl.store(sums + BLOCK, tl.sum(tl.where(own, 0.0, skewed), axis=0))


def bias_gradient(
    grad: torch.Tensor,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    log_sums: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return the gradient of the bias of biased_attention.biased_causal_attention.

    Args:
        grad: gradient of the output, [S, B, heads, D].
        out: the output, [S, B, heads, D].
        query: [S, B, heads, D]
        key: [S, B, groups, D]
        value: [S, B, groups, D]
        bias: [heads, S]
        log_sums: logarithms of the softmax's sums, [B, heads, S] in float32.
        scale: factor on the products, not on the bias.

    Returns:
        [heads, S], in the bias's dtype. Equal inputs give equal bits, because no sum is atomic.
    """
    sequence, batch, heads, dim = query.shape
    # The kernel takes any stride between rows, but elements of a row must be adjacent.
    grad, out, query, key, value = (
        each if each.stride(3) == 1 else each.contiguous() for each in (grad, out, query, key, value)
    )
    bands = triton.cdiv(sequence, BLOCK)
    sums = torch.empty(batch, heads, bands, 2, BLOCK, device=query.device)
    strides = (stride for each in (grad, out, query, key, value) for stride in each.stride()[:3])
    _sum_band[(bands, batch * heads)](
        grad, out, query, key, value, bias.contiguous(), log_sums.contiguous(), sums,
        scale, sequence, heads, heads // key.shape[2], dim, value.shape[3],
        *strides, sequence,
        BLOCK=BLOCK,
        DIM=max(triton.next_power_of_2(dim), LEAST_DIM),
        VALUE_DIM=max(triton.next_power_of_2(value.shape[3]), LEAST_DIM),
        num_warps=WARPS,
        num_stages=STAGES[query.element_size()],
    )  # fmt: skip
    of_batches = sums.sum(dim=0)
    own, before = of_batches.unbind(dim=2)
    own[:, :-1] += before[:, 1:]
    return own.flatten(1)[:, :sequence].to(bias.dtype)
