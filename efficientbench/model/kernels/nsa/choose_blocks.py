"""Choose the blocks that a query's selected branch reads (NSA, arXiv 2502.11089, equations 9 to 11).

N = batch × groups, S = sequence, G = query heads of a group, C = queries of one call, K = compressed keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from efficientbench.architecture.nsa import NSAConfig
from efficientbench.config.schema import RunConfig
from efficientbench.model.kernels.fusion import fused
from efficientbench.model.kernels.nsa.reach import Reach

LOCAL_BLOCKS = 2
"""Blocks that are always chosen besides the first one: the query's own, and those just before it."""
MOST_SCORES, MOST_SCORES_COMPILED = 2**27, 2**30
"""Scores that exist at once in `choose_at_once`. Compiled kernels make no float32 copy: 2 GiB in bf16."""


@dataclass(frozen=True)
class Choice:
    """The sizes of selected blocks and compressed keys."""

    block: int
    """Tokens in a selected block (l')."""
    count: int
    """Blocks that a query reads (n)."""
    length: int
    """Tokens of a compressed key (l)."""
    stride: int
    """Tokens from the start of one compressed key to the start of the next (d)."""

    def without_scores(self, batch: int, sequence: int, device: torch.device) -> torch.Tensor:
        """Return the choice of queries without a compressed key in their past, [N, S, count]: the first block alone."""
        chosen = torch.full((batch, sequence, self.count), -1, device=device)
        chosen[..., 0] = 0
        return chosen


@dataclass(frozen=True)
class SelectionShape:
    """The sizes on which the choice of the selected branch's kernel depends."""

    block: int
    """Tokens in a block."""
    count: int
    """Blocks that a query reads."""
    head_dim: int
    group: int
    """Query heads that share a choice."""
    sequence: int
    half: bool
    """Whether the dtype is bf16 or fp16."""

    @classmethod
    def of(cls, config: RunConfig, nsa: NSAConfig) -> SelectionShape:
        """Return the shape of a run's selected branch."""
        model, training = config.model, config.training
        group, half = model.heads // nsa.query_groups, training.dtype != "fp32"
        return cls(nsa.select_block, nsa.select_count, model.head_dim, group, training.seq_len, half)


def choose_blocks(
    probabilities: torch.Tensor, positions: torch.Tensor, blocks: int, choice: Choice, fuse: bool = False
) -> torch.Tensor:
    """Return the blocks that each query reads, by its probabilities over the compressed keys.

    Args:
        probabilities: [N, C, K], summed over the query heads of a group (equation 10).
        positions: the queries' positions, [C] or [N, C].
        blocks: the number of blocks up to the last query's own.
        choice: sizes of blocks and compressed keys.
        fuse: use compiled kernels.

    Returns:
        [N, C, count], block numbers in no order; -1 where a query has fewer than `count` blocks.
    """
    rank, mark = (fused(_ranking), fused(_marked)) if fuse else (_ranking, _marked)
    best, chosen = rank(probabilities, positions, blocks, choice).topk(min(choice.count, blocks), dim=-1)
    chosen = mark(best, chosen)
    missing = choice.count - chosen.shape[-1]
    return torch.nn.functional.pad(chosen, (0, missing), value=-1) if missing else chosen


@torch.no_grad()
@torch.profiler.record_function("choose_at_once")
def choose_at_once(
    query: torch.Tensor,
    key: torch.Tensor,
    log_sums: torch.Tensor,
    scale: float,
    reach: Reach,
    choice: Choice,
    fuse: bool,
) -> torch.Tensor:
    """Return the blocks that each query reads, by few operations on as many queries as memory allows.

    Args:
        query: [N, S, G, D]
        key: compressed keys [N, K, D].
        log_sums: [N, S, G] in float32, logarithm of each query's sum of exp(scores); any value if it sees no key.
        scale: factor on the scores.
        reach: the compressed keys that a query sees.
        choice: sizes of blocks and compressed keys.
        fuse: use compiled kernels.

    Returns:
        [N, S, count], as `choose_blocks` returns them.
    """
    batch, sequence, group, _ = query.shape
    weigh = fused(_weights) if fuse else _weights
    chosen = []
    for first, stop, seen in chunks(sequence, key.shape[1], reach, batch * group, fuse):
        scores = query[:, first:stop].flatten(1, 2) @ key[:, :seen].transpose(1, 2)
        probabilities = weigh(scores, log_sums[:, first:stop], scale, first, reach)
        positions, blocks = torch.arange(first, stop, device=query.device), (stop - 1) // choice.block + 1
        chosen.append(choose_blocks(probabilities, positions, blocks, choice, fuse))
    return torch.cat(chosen, dim=1) if len(chosen) > 1 else chosen[0]


def chunks(sequence: int, keys: int, reach: Reach, heads: int, fuse: bool) -> Iterator[tuple[int, int, int]]:
    """Yield each chunk of queries: its first query, the one after its last, and the number of keys that it sees.

    `heads`: query heads of all sequences and groups; `fuse`: whether compiled kernels choose.
    """
    rows = max((MOST_SCORES_COMPILED if fuse else MOST_SCORES) // (heads * keys), 1)
    for first in range(0, sequence, rows):
        stop = min(first + rows, sequence)
        yield first, stop, max(reach.last(stop - 1), 1)


def _weights(scores: torch.Tensor, log_sums: torch.Tensor, scale: float, first: int, reach: Reach) -> torch.Tensor:
    """Return the probabilities of scores [N, C · G, K], summed over the heads of a group: [N, C, K] in float32."""
    scaled = scores.unflatten(1, log_sums.shape[1:]).float() * scale
    hidden = reach.hidden(
        torch.arange(first, first + log_sums.shape[1], device=scores.device),
        torch.arange(scores.shape[2], device=scores.device),
    )
    # Filled after exp_, which is right also for a query that sees no key and whose `log_sums` may be anything.
    return scaled.sub_(log_sums[..., None]).exp_().masked_fill_(hidden[:, None], 0).sum(dim=2)


def _ranking(probabilities: torch.Tensor, positions: torch.Tensor, blocks: int, choice: Choice) -> torch.Tensor:
    """Return the rank of each block, [N, C, blocks]: its importance, ∞ if it is always chosen, −∞ after the query."""
    scores = _block_scores(probabilities, blocks, choice)
    own = positions[..., None] // choice.block
    number = torch.arange(blocks, device=scores.device)
    always = (number == 0) | ((number <= own) & (number > own - LOCAL_BLOCKS))
    return scores.masked_fill_(always, float("inf")).masked_fill_(number > own, float("-inf"))


def _marked(best: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the chosen blocks, [N, C, count], with -1 instead of blocks after the query."""
    return chosen.masked_fill(best == float("-inf"), -1)


def _block_scores(probabilities: torch.Tensor, blocks: int, choice: Choice) -> torch.Tensor:
    """Return the importance of each block, [N, C, blocks].

    Equation 9 with indices from zero. A stride is d tokens; its importance is the sum of the probabilities of the
    compressed keys that cover it. A block's importance is the sum over its strides.
    """
    per_key, per_block = choice.length // choice.stride, choice.block // choice.stride
    strides = blocks * per_block
    padded = torch.nn.functional.pad(probabilities, (per_key - 1, strides - probabilities.shape[-1]))
    covering = padded[..., :strides].clone()
    for offset in range(1, per_key):
        covering += padded[..., offset : offset + strides]
    return covering.view(*covering.shape[:-1], blocks, per_block).sum(dim=-1)
