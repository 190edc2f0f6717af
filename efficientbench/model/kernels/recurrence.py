"""Recurrences with a state for each head: the gated delta rule (arXiv 2412.06464) and Mamba-2 (arXiv 2405.21060).

Each head has a state S [K, V]. For a token with query q, key k, value v and decay g ≤ 0 it fades and learns:

    S ← exp(g) S,  S ← S + k vᵀ,  o = Sᵀ q

The gated delta rule, with keys of length 1 and a strength β, learns β (v − Sᵀ k) instead of v, and so forgets what the
key recalls. A step for each token would take as many steps as tokens. Within a chunk outputs are products of matrices
(arXiv 2405.21060, section 6), and what the tokens learn by the delta rule is the solution of one triangular system
(arXiv 2412.06464, section 3.3): only chunks follow one another.
S = sequence, B = batch, N = chunks, C = tokens of a chunk, G = key heads, R = value heads of a key head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from efficientbench.architecture.recurrent import CHUNK

NAME = f"torch matmuls over chunks of {CHUNK} tokens, float32"
DELTA_NAME = f"torch matmuls over chunks of {CHUNK} tokens, a triangular solve in each, float32"
STEP_NAME = "torch matmuls with the recurrent state, float32"


def recurrence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a sequence chunk by chunk, in float32 or wider.

    Args:
        query: [S, B, G, K]
        key: [S, B, G, K]
        value: [S, B, G · R, V]; the heads of one key head lie together.
        decay: [S, B, G · R], the logarithms of the factors on the state; −∞ begins with an empty one.
        beta: [S, B, G · R], between 0 and 1, of the gated delta rule; with 0, and a decay of 0, a token leaves the
            state as it is. None: tokens learn their values.
        state: [B, G · R, K, V] before the first token; None: empty.

    Returns:
        The outputs [S, B, G · R, V] in the value's dtype, and the state after the last token.
    """
    length, rows, groups, width = query.shape
    heads, size = value.shape[2], min(CHUNK, length)
    narrow, wide = value.dtype, torch.promote_types(value.dtype, torch.float32)
    if state is None:
        state = value.new_zeros(rows, heads, width, value.shape[3], dtype=wide)
    query, key, value, decay = (_chunks(x.to(wide), groups, size) for x in (query, key, value, decay[..., None]))
    fading = _sums(decay[..., 0]).exp()
    since_begin = decay.cumsum(dim=-2).exp()
    recalling: Sequence[torch.Tensor] = ()
    if beta is None:
        values = value.flatten(1, 3)
    else:
        # What a token recalls of the chunk's earlier tokens depends on what those recall: a triangular system, solved
        # for its value and for its key, which recalls the state before the chunk.
        beta = _chunks(beta[..., None].to(wide), groups, size)
        system = key @ key.mT * fading * beta
        wanted = torch.cat([value * beta, key * (beta * since_begin)], dim=-1)
        solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        values, keys = solved.flatten(1, 3).split([value.shape[-1], width], dim=-1)
        recalling = keys.unbind()
    kept = (key * fading[..., -1, :, None]).flatten(1, 3).mT
    whole_chunk = since_begin[..., -1:, :].flatten(1, 3)
    before, learned, carried = [], list(values.unbind()), state.to(wide).flatten(0, 1)
    for number, (keeping, factor) in enumerate(zip(kept.unbind(), whole_chunk.unbind(), strict=True)):
        before.append(carried)
        if recalling:
            learned[number] = torch.baddbmm(learned[number], recalling[number], carried, alpha=-1)
        carried = torch.baddbmm(carried * factor, keeping, learned[number])
    from_state = (query * since_begin).flatten(1, 3) @ torch.stack(before)
    out = from_state + (query @ key.mT * fading).flatten(1, 3) @ (torch.stack(learned) if recalling else values)
    # [N, B · G · R, C, V] → [S, B, G · R, V]
    out = out.unflatten(1, (rows, heads)).permute(0, 3, 1, 2, 4).flatten(0, 1)[:length]
    return out.to(narrow), carried.unflatten(0, (rows, heads))


def _chunks(x: torch.Tensor, groups: int, size: int) -> torch.Tensor:
    """Cut a sequence [S, B, G or G · R, D] into chunks, the last filled with zeros: [N, B, G, 1 or R, C, D]."""
    filled = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % size))
    return filled.unflatten(2, (groups, -1)).unflatten(0, (-1, size)).permute(0, 2, 3, 4, 1, 5).contiguous()


def _sums(decay: torch.Tensor) -> torch.Tensor:
    """Return the sums of the decays [..., C] behind one token up to another: [..., C, C]; −∞ above the diagonal.

    Each is added up by itself. The differences of sums from the chunk's begin would lose the small ones behind a large
    decay, and would be no numbers behind one of −∞.
    """
    size = decay.shape[-1]
    behind = torch.ones(size, size, dtype=torch.bool, device=decay.device).tril(-1)
    summed = decay[..., None].expand(*decay.shape, size).masked_fill(~behind, 0.0).cumsum(dim=-2)
    return summed.masked_fill(behind.mT, -torch.inf)


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
    state.mul_(decay[0].exp()[..., None, None])
    learned = value[0][:, :, None].to(state.dtype)
    if beta is not None:
        learned = (learned - key @ state) * beta[0][..., None, None]
    state += key.mT @ learned
    return (query @ state).permute(2, 0, 1, 3).to(value.dtype)
