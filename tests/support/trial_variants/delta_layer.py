"""The layer of the gated delta rule, in chunks of one token: S ← α S (I − β k kᵀ) + β v kᵀ, o = S q.

S = sequence, B = micro-batch, H = hidden size, N = heads, D = head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import MegatronModule, TransformerConfig

from efficientbench.model.cache import State, Stateful
from efficientbench.model.layers import column_parallel, row_parallel


class Recalled(State):
    """The state of the recurrence, [B, N, D, D]."""

    def __init__(self, sums: torch.Tensor) -> None:
        self.sums = sums


class GatedDelta(Stateful, MegatronModule):
    """The whole layer."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        *,
        heads: int,
        dim: int,
    ) -> None:
        super().__init__(config)
        self.heads, self.dim = heads, dim
        self.linear_in = column_parallel(config, config.hidden_size, heads * (3 * dim + 2), pg_collection.tp)
        self.linear_proj = row_parallel(config, heads * dim, config.hidden_size, pg_collection.tp)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: None = None, **unused: object
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [S, B, H] → output [S, B, H] and no bias."""
        with torch.autograd.profiler.record_function("GatedDelta"):
            return self._answers(hidden_states)

    def _answers(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        mixed, _ = self.linear_in(hidden_states)
        mixed = mixed.unflatten(-1, (self.heads, -1))
        query, key, value, gates = mixed.split([self.dim, self.dim, self.dim, 2], dim=-1)
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        alpha, beta = gates.sigmoid().unbind(-1)
        # State [B, N, D, D], of values by keys.
        state = query.new_zeros(*query.shape[1:], self.dim) if self.cache is None else self.state.sums
        outputs = []
        for index, (q, k, v, a, b) in enumerate(zip(query, key, value, alpha, beta, strict=True)):
            before = state
            recalled = torch.einsum("bnij,bnj->bni", state, k)
            learned = b[..., None] * (v - a[..., None] * recalled)
            state = a[..., None, None] * state + learned[..., None] * k[..., None, :]
            outputs.append(torch.einsum("bnij,bnj->bni", state, q))
            if self.cache is not None:
                counts = index < self.cache.chunk.counts
                state = torch.where(counts[:, None, None, None], state, before)
        if self.cache is not None:
            self.state.sums.copy_(state)
        return self.linear_proj(torch.stack(outputs).flatten(2))

    def new_state(self, rows: int, tokens: int) -> Recalled:
        """Return a state that has seen no token."""
        return Recalled(torch.zeros(rows, self.heads, self.dim, self.dim, dtype=self.config.params_dtype))
