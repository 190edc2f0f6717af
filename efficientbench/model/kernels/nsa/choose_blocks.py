"""Choose the blocks that a query's selected branch reads (NSA, arXiv 2502.11089, equations 9 to 11).

N = batch × groups, S = sequence, C = queries of one call, K = compressed keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from efficientbench.config.schema import RunConfig
from efficientbench.model.attention.nsa_variant import NSAConfig

LOCAL_BLOCKS = 2
"""How many blocks up to a query's own are always chosen; the first block is, too."""


@dataclass(frozen=True)
class Choice:
    """The geometry of the choice."""

    block: int
    """Tokens in a block to choose (l')."""
    count: int
    """Blocks that a query reads (n)."""
    length: int
    """Tokens in a compressed key (l)."""
    stride: int
    """Tokens from one compressed key's start to the next (d)."""

    def without_scores(self, batch: int, sequence: int, device: torch.device) -> torch.Tensor:
        """Return [N, S, count]: the first block alone, as is right until the first compressed key lies in the past."""
        chosen = torch.full((batch, sequence, self.count), -1, device=device)
        chosen[..., 0] = 0
        return chosen


@dataclass(frozen=True)
class SelectionShape:
    """The sizes on which the kernel of the attention to the chosen blocks depends."""

    block: int
    """Tokens in a block."""
    count: int
    """Blocks of a query."""
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


def choose_blocks(probabilities: torch.Tensor, positions: torch.Tensor, blocks: int, choice: Choice) -> torch.Tensor:
    """Return the blocks that each query reads, from its probabilities over the compressed keys.

    Args:
        probabilities: [N, C, K], summed over the query heads of a group (equation 10).
        positions: of the queries, [C] or [N, C].
        blocks: how many there are to choose from, that of the last query included.
        choice: blocks and compressed keys.

    Returns:
        [N, C, count], numbers of blocks in no order, -1 where there are fewer blocks than `count`.
    """
    scores = _block_scores(probabilities, blocks, choice)
    own = positions[..., None] // choice.block
    number = torch.arange(blocks, device=scores.device)
    always = (number == 0) | ((number <= own) & (number > own - LOCAL_BLOCKS))
    scores.masked_fill_(always, float("inf")).masked_fill_(number > own, float("-inf"))
    best, chosen = scores.topk(min(choice.count, blocks), dim=-1)
    chosen.masked_fill_(best == float("-inf"), -1)
    return torch.nn.functional.pad(chosen, (0, choice.count - chosen.shape[-1]), value=-1)


def _block_scores(probabilities: torch.Tensor, blocks: int, choice: Choice) -> torch.Tensor:
    """Return the importance of each block, [N, C, blocks].

    Equation 9 with indices from zero: tokens come in strides. The importance of a stride is the sum over the compressed
    keys that cover it, that of a block the sum over its strides.
    """
    per_key, per_block = choice.length // choice.stride, choice.block // choice.stride
    strides = blocks * per_block
    padded = torch.nn.functional.pad(probabilities, (per_key - 1, strides - probabilities.shape[-1]))
    covering = padded[..., :strides].clone()
    for offset in range(1, per_key):
        covering += padded[..., offset : offset + strides]
    return covering.view(*covering.shape[:-1], blocks, per_block).sum(dim=-1)
