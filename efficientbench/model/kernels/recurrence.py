"""Recurrences with a state for each head: the gated delta rule (arXiv 2412.06464) and Mamba-2 (arXiv 2405.21060).

Each head has a state S [K, V]. For a token with query q, key k, value v and decay g ≤ 0 it fades and learns:

    S ← exp(g) S,  S ← S + k vᵀ,  o = Sᵀ q

The gated delta rule, with keys of length 1 and a strength β, learns β (v − Sᵀ k) instead of v, and so forgets what the
key recalls. In Kimi Delta Attention (arXiv 2510.26692, section 3) each channel of the key has its own decay, g [K].
A step for each token would take as many steps as tokens. Within a chunk outputs are products of matrices
(arXiv 2405.21060, section 6), and what the tokens learn by the delta rule is the solution of one triangular system
(arXiv 2412.06464, section 3.3): only chunks follow one another.
S = sequence, B = batch, N = chunks, C = tokens of a chunk, G = key heads, R = value heads of a key head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from efficientbench.architecture.kda import BLOCK
from efficientbench.architecture.recurrent import CHUNK
from efficientbench.model.kernels import recurrence_fla

NAME = f"torch matmuls over chunks of {CHUNK} tokens, float32"
DELTA_NAME = f"torch matmuls over chunks of {CHUNK} tokens, a triangular solve in each, float32"
BY_CHANNEL_NAME = f"{DELTA_NAME}, decays by channel"
STEP_NAME = "torch matmuls with the recurrent state, float32"


def recurrence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a sequence chunk by chunk: by fla-core's kernel where it serves, or in float32 or wider.

    Args:
        query: [S, B, G, K]
        key: [S, B, G, K]
        value: [S, B, G · R, V]; the heads of one key head lie together.
        decay: [S, B, G · R] or, for each channel of the key, [S, B, G · R, K]: the logarithms of the factors on the
            state; −∞ begins with an empty one.
        beta: [S, B, G · R], between 0 and 1, of the gated delta rule; with 0, and a decay of 0, a token leaves the
            state as it is. None: tokens learn their values.
        state: [B, G · R, K, V] before the first token; None: empty.

    Returns:
        The outputs [S, B, G · R, V] in the value's dtype, and the state after the last token.
    """
    rule = recurrence_fla.rule_for(query, value, decay, beta)
    if rule is None:
        return _in_float32(query, key, value, decay, beta, state)
    return recurrence_fla.recurrence(rule, query, key, value, decay, beta, state)


def _in_float32(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a sequence by operators of torch; arguments and results as of `recurrence`."""
    length, rows, groups, width = query.shape
    heads, size = value.shape[2], min(CHUNK, length)
    narrow, wide = value.dtype, torch.promote_types(value.dtype, torch.float32)
    if state is None:
        state = value.new_zeros(rows, heads, width, value.shape[3], dtype=wide)
    by_channel = decay.dim() == key.dim()
    decay = decay if by_channel else decay[..., None]
    query, key, value, decay = (_chunks(x.to(wide), groups, size) for x in (query, key, value, decay))
    recalled, asked, until_end = (_by_channel if by_channel else _by_head)(query, key, decay, beta is not None)
    since_begin = decay.cumsum(dim=-2).exp()
    recalling: Sequence[torch.Tensor] = ()
    if beta is None:
        values = value.flatten(1, 3)
    else:
        # What a token recalls of the chunk's earlier tokens depends on what those recall: a triangular system, solved
        # for its value and for its key, which recalls the state before the chunk.
        beta = _chunks(beta[..., None].to(wide), groups, size)
        assert recalled is not None
        system = recalled * beta
        wanted = torch.cat([value * beta, key * (beta * since_begin)], dim=-1)
        solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        values, keys = solved.flatten(1, 3).split([value.shape[-1], width], dim=-1)
        recalling = keys.unbind()
    kept = (key * until_end).flatten(1, 3).mT
    whole_chunk = since_begin[..., -1:, :].flatten(1, 3).mT
    before, learned, carried = [], list(values.unbind()), state.to(wide).flatten(0, 1)
    for number, (keeping, factor) in enumerate(zip(kept.unbind(), whole_chunk.unbind(), strict=True)):
        before.append(carried)
        if recalling:
            learned[number] = torch.baddbmm(learned[number], recalling[number], carried, alpha=-1)
        carried = torch.baddbmm(carried * factor, keeping, learned[number])
    from_state = (query * since_begin).flatten(1, 3) @ torch.stack(before)
    out = from_state + asked.flatten(1, 3) @ (torch.stack(learned) if recalling else values)
    # [N, B · G · R, C, V] → [S, B, G · R, V]
    out = out.unflatten(1, (rows, heads)).permute(0, 3, 1, 2, 4).flatten(0, 1)[:length]
    return out.to(narrow), carried.unflatten(0, (rows, heads))


def _chunks(x: torch.Tensor, groups: int, size: int) -> torch.Tensor:
    """Cut a sequence [S, B, G or G · R, D] into chunks, the last filled with zeros: [N, B, G, 1 or R, C, D]."""
    filled = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % size))
    return filled.unflatten(2, (groups, -1)).unflatten(0, (-1, size)).permute(0, 2, 3, 4, 1, 5).contiguous()


Products = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]
"""Each token's key, where it recalls, and its query, with the keys up to it, faded since: two tensors
[N, B, G, R, C, C]; and what fades behind each token up to the chunk's end: [N, B, G, R, C, 1 or K]."""


def _by_head(query: torch.Tensor, key: torch.Tensor, decay: torch.Tensor, recalls: bool) -> Products:
    """Return the products where all channels have one decay [N, B, G, R, C, 1]."""
    fading = _sums(decay).exp().squeeze(-1)
    recalled = key @ key.mT * fading if recalls else None
    return recalled, query @ key.mT * fading, fading[..., -1, :, None]


def _by_channel(query: torch.Tensor, key: torch.Tensor, decay: torch.Tensor, recalls: bool) -> Products:
    """Return the products where each channel has a decay [N, B, G, R, C, K].

    What fades between them is kept no longer than needed: it is many times as large as what it is computed from.
    """
    if torch.is_grad_enabled():
        recalled, asked = checkpoint(_products_by_channel, query, key, decay, use_reentrant=False).unbind(dim=-3)
    else:
        recalled, asked = _products_by_channel(query, key, decay).unbind(dim=-3)
    return recalled, asked, _until_end(decay).exp()


def _products_by_channel(query: torch.Tensor, key: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Return the products of keys, then those of queries, [N, B, G, R, 2, C, C].

    Each sums over channels what has another factor for each pair of tokens, which is no product of matrices. What fades
    from a token to one of a later block falls into what fades to the block's begin, and since: factors of such a
    product. Only within the small blocks along the diagonal the factors are written out.
    """
    size = decay.shape[-2]
    both, rows = torch.stack([key, query], dim=-3), []
    for begin in range(0, size, BLOCK):
        own = slice(begin, begin + BLOCK)
        left, right = both[..., own, :], key[..., own, :]
        faded = right[..., None, :, :] * _sums(decay[..., own, :]).exp()
        row = [(left[..., None, :] * faded[..., None, :, :, :]).sum(dim=-1)]
        if begin:
            earlier = key[..., :begin, :] * _until_end(decay[..., :begin, :]).exp()
            since = left * decay[..., own, :].cumsum(dim=-2).exp()[..., None, :, :]
            row.insert(0, (since.flatten(-3, -2) @ earlier.mT).unflatten(-2, (2, -1)))
        rows.append(F.pad(torch.cat(row, dim=-1), (0, max(size - begin - BLOCK, 0))))
    return torch.cat(rows, dim=-2)


def _until_end(decay: torch.Tensor) -> torch.Tensor:
    """Return the sums of the decays [..., C, K] behind each token up to the last, each added up by itself."""
    return F.pad(decay[..., 1:, :].flip(-2).cumsum(dim=-2).flip(-2), (0, 0, 0, 1))


def _sums(decay: torch.Tensor) -> torch.Tensor:
    """Return the sums of the decays [..., C, K] behind one token up to another: [..., C, C, K]; −∞ above the diagonal.

    Each is added up by itself. The differences of sums from the chunk's begin would lose the small ones behind a large
    decay, and would be no numbers behind one of −∞.
    """
    size = decay.shape[-2]
    behind = torch.ones(size, size, dtype=torch.bool, device=decay.device).tril(-1)[..., None]
    pairs = decay[..., :, None, :].expand(*decay.shape[:-1], size, decay.shape[-1])
    return pairs.masked_fill(~behind, 0.0).cumsum(dim=-3).masked_fill(behind.transpose(0, 1), -torch.inf)


def recurrence_step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor,
) -> torch.Tensor:
    """Compute one token, S = 1, and change the state [B, G · R, K, V] in place; shapes and result as above."""
    repeats = value.shape[2] // query.shape[2]
    query, key = (x[0].to(state.dtype).repeat_interleave(repeats, dim=1)[:, :, None] for x in (query, key))
    state.mul_(decay[0].exp().reshape(*state.shape[:2], -1, 1))
    learned = value[0][:, :, None].to(state.dtype)
    if beta is not None:
        learned = (learned - key @ state) * beta[0][..., None, None]
    state += key.mT @ learned
    return (query @ state).permute(2, 0, 1, 3).to(value.dtype)
