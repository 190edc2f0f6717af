"""Native Sparse Attention (arXiv 2502.11089, equations 5 to 12): compressed, selected and window branch, gated.

S = sequence, B = micro-batch, H = hidden size, D = head dimension, Hg = KV groups of this tensor-parallel rank,
G = query heads of a group, C = compressed keys; l, d, l', n, w as in architecture/nsa.py.

RoPE rotates the queries once, for all branches, and the keys of the selected and the window branch. φ compresses
unrotated keys, to which it adds the position within the block; a compressed key is then rotated by the position of its
block's first token. So its scores, too, depend on distances alone, which an MLP of rotated keys would not ensure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import checkpoint, copy_to_tensor_model_parallel_region
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.architecture.nsa import BRANCHES, NSAConfig
from efficientbench.architecture.variant import Decoder
from efficientbench.model.attention.nsa_state import NSAState, Tokens, continued
from efficientbench.model.cache import Stateful
from efficientbench.model.documents import Documents
from efficientbench.model.kernels.nsa.choose_blocks import Choice
from efficientbench.model.kernels.nsa.gate import gated_sum
from efficientbench.model.kernels.nsa.range_attention import range_attention
from efficientbench.model.kernels.nsa.reach import Reach
from efficientbench.model.kernels.nsa.selected_attention import selected_attention
from efficientbench.model.layers import column_parallel, row_parallel
from efficientbench.model.position import Position, position_table


class Compression(torch.nn.Module):
    """φ: compresses the keys (or values) of a block to one, by an MLP with a position embedding within the block.

    All groups of a layer share it. Every tensor-parallel rank has all of its weights, and the ranks sum its gradient.
    """

    def __init__(self, config: TransformerConfig, nsa: NSAConfig, dim: int, tp_group: torch.distributed.ProcessGroup):
        super().__init__()
        self.tp_group = tp_group
        place = {"dtype": config.params_dtype, "device": torch.get_default_device()}
        self.position = position_table(nsa.compress_block, dim, config)
        self.weight_in = torch.nn.Parameter(torch.empty(dim, nsa.compress_block * dim, **place))
        self.weight_out = torch.nn.Parameter(torch.empty(dim, dim, **place))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the position embedding [l, D] and both weights, [D, l · D] and [D, D].

        Not by attributes: Megatron gathers weights meanwhile, and waits for a module's where the module is called.
        """
        return self.position, self.weight_in, self.weight_out


def compress(
    x: torch.Tensor, weights: Iterable[torch.Tensor], stride: int, tp_group: torch.distributed.ProcessGroup
) -> torch.Tensor:
    """Compress x [P, B, Hg, S, D] → [P, B, Hg, C, D] by P networks φ at once, whose `weights` are stacked."""
    position, weight_in, weight_out = (copy_to_tensor_model_parallel_region(each, group=tp_group) for each in weights)
    blocks = x.unfold(3, position.shape[1], stride).transpose(4, 5) + position[:, None, None, None]
    # The weights are the first factor, whose gradient in a batched product is contiguous without a copy.
    inner = F.silu(weight_in @ blocks.flatten(4).flatten(1, 3).mT)
    return (weight_out @ inner).mT.view(*blocks.shape[:4], -1)


class NativeSparseAttention(Stateful, MegatronModule):
    """The attention layer, projections included: hidden states [S, B, H] → [S, B, H].

    For token t with hidden state h_t [H] and a head's query q_t [D], over the keys K_c and values V_c [keys, D] that
    branch c has for the head's group:

        o_t = Σ_c g_t,c · softmax(q_t K_cᵀ / √D) V_c,  g_t = sigmoid(W_g h_t) [3]        (equation 5)
        compressed: φ(k_{i·d}, …, k_{i·d + l - 1}) for every i with i·d + l - 1 ≤ t      (equation 7)
        selected: keys up to t in the n blocks of l' tokens with the largest sums of p_t (equations 9 to 12)
        window: k_{t - w + 1}, …, k_t

    p_t are the compressed branch's probabilities, summed over the group's heads (equations 8 and 10), so that all heads
    of a group read the same blocks. The first block, the query's own and the one before it are always among the n. A
    query thus reads about t / d + n · l' + w keys, not t.

    Each branch has its own key and value projections. Kernels take queries [B · Hg, S, G, D], a branch's keys and
    values [B · Hg, S or C, D], and gates [3, B · Hg, S, G, 1].
    """

    decodes_by = "torch matmuls over compressed keys, gathered blocks and the window, softmax in float32"

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        model: Decoder,
        position: Position,
    ) -> None:
        super().__init__(config)
        assert isinstance(model.attention, NSAConfig)
        tp_group = (pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp"])).tp
        self.nsa, self.dim, self.position = model.attention, model.head_dim, position
        self.group = model.heads // self.nsa.query_groups
        hidden, mixed = config.hidden_size, self.nsa.query_groups * (self.group + 2 * BRANCHES) * self.dim
        self.linear_qkv = column_parallel(config, hidden, mixed, tp_group, self.nsa.qkv_bias)
        self.linear_gate = column_parallel(config, hidden, model.heads * BRANCHES, tp_group)
        self.linear_proj = row_parallel(config, model.heads * self.dim, hidden, tp_group)
        self.compress_key = Compression(config, self.nsa, self.dim, tp_group)
        self.compress_value = Compression(config, self.nsa, self.dim, tp_group)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: None = None,
        packed_seq_params: Documents | None = None,
        **unused: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend: hidden_states [S, B, H] → output [S, B, H], and None for the bias.

        `packed_seq_params`: the documents within which to attend; None: each sequence is one.
        """
        mixed = self._mix(hidden_states)
        gates, _ = self.linear_gate(hidden_states)
        if packed_seq_params is None:
            return self.linear_proj(self._attend_sequences(gates, mixed))
        return self.linear_proj(packed_seq_params.each(self._attend_sequences, (gates, mixed)))

    def _attend_sequences(self, gates: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Attend: projected gates [S, B, Hg · G · 3], mixed [S, B, Hg, G + 6, D] → [S, B, Hg · G · D]."""
        sequence, batch = gates.shape[:2]
        gates = gates.sigmoid().view(sequence, batch, -1, self.group, BRANCHES)
        gates = gates.permute(4, 1, 2, 0, 3).flatten(1, 2)[..., None]
        if self.cache is not None and not self.cache.chunk.fresh:
            gated = self._continue(gates, mixed)
        elif self.config.recompute_granularity == "selective" and self.training:
            gated = checkpoint(self._attend, False, gates, *self._project(mixed))
        else:
            gated = self._attend(gates, *self._project(mixed))
        gated = gated.view(batch, -1, *gated.shape[1:]).permute(2, 0, 1, 3, 4)
        return gated.reshape(sequence, batch, -1)

    def _mix(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Project [S, B, H] → [S, B, Hg, G + 6, D]: queries, keys and values, without positional encoding."""
        mixed, _ = self.linear_qkv(hidden_states)
        # Each group's query heads, keys and values lie together, so that a tensor-parallel rank holds whole groups.
        return mixed.view(*mixed.shape[:2], -1, self.group + 2 * BRANCHES, self.dim)

    def _turn(self, to_turn: torch.Tensor, position: Position) -> torch.Tensor:
        """Rotate the queries, and the keys of the selected and the window branch: [S, B, Hg, G + 2, D]."""
        encoded = position.rotate(to_turn.flatten(2, 3))
        return encoded.reshape(*encoded.shape[:2], -1, self.group + 2, self.dim)

    def _project(self, mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return query [B · Hg, S, G, D], and each branch's keys and values [B · Hg, S or C, D], encoded."""
        # By split and unbind, whose gradients are joined in one copy.
        to_turn, to_compress, values = mixed.split([self.group + 2, 2, 2], dim=3)
        by_token = self._turn(to_turn, self.position)
        turned = by_token.permute(1, 2, 0, 3, 4).flatten(0, 1)
        query, selected_key, window_key = turned.split([self.group, 1, 1], dim=2)
        compressed_key, compressed_value = self._compress(
            to_compress.permute(3, 1, 2, 0, 4), self.nsa.compress_stride
        ).unbind(0)
        compressed_key = self.position.rotate(compressed_key.permute(2, 0, 1, 3), self.nsa.compress_stride)
        compressed_key = compressed_key.permute(1, 2, 0, 3).flatten(0, 1)
        compressed_value = compressed_value.flatten(0, 1)
        if self.cache is not None:
            assert isinstance(self.state, NSAState)
            self.state.fill(self._tokens(mixed, by_token), compressed_key, compressed_value, self.cache.chunk)
        # A copy: a view would keep all that `linear_qkv` returned until the backward pass.
        selected_value, window_value = values.permute(3, 1, 2, 0, 4).contiguous().flatten(1, 2).unbind(0)
        return (
            query.contiguous(),
            compressed_key,
            compressed_value,
            selected_key.squeeze(2).contiguous(),
            selected_value,
            window_key.squeeze(2).contiguous(),
            window_value,
        )

    def _compress(self, x: torch.Tensor, stride: int) -> torch.Tensor:
        """Compress keys and values [2, B, Hg, S, D] → [2, B, Hg, C, D]; a block begins at each `stride`-th token."""
        missing = self.nsa.compress_block - x.shape[3]
        if missing > 0:
            # A sequence shorter than a block gets one compressed key, which no query sees.
            x = F.pad(x, (0, 0, 0, missing))
        weights = zip(self.compress_key(), self.compress_value(), strict=True)
        compressed = compress(x, map(torch.stack, weights), stride, self.compress_key.tp_group)
        # The kernels take contiguous keys and values.
        return compressed.contiguous()

    def _tokens(self, mixed: torch.Tensor, turned: torch.Tensor) -> Tokens:
        """Split what `_mix` and `_turn` return into the keys and values of each branch."""
        raw_key, raw_value, selected_value, window_value = mixed[:, :, :, -4:].unbind(3)
        selected_key, window_key = turned[:, :, :, -2:].unbind(3)
        return Tokens(raw_key, raw_value, selected_key, selected_value, window_key, window_value)

    def _continue(self, gates: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Attend to the state: gates [3, B · Hg, S, G, 1], mixed [S, B, Hg, G + 6, D] → [B · Hg, S, G, D]."""
        assert self.cache is not None
        assert isinstance(self.state, NSAState)
        chunk = self.cache.chunk
        turned = self._turn(mixed[:, :, :, :-4], chunk.at_positions(self.position))
        # Clamped: the compressed key of fewer tokens than a block is not kept.
        first_tokens = (chunk.positions + 1 - self.nsa.compress_block).clamp(min=0)

        def compressed(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            key, value = self._compress(torch.stack([keys, values]), 1).permute(0, 3, 1, 2, 4)
            return self.position.at(first_tokens).rotate(key), value

        query = turned[:, :, :, : self.group].permute(1, 2, 0, 3, 4).flatten(0, 1)
        branches = continued(
            self.state, self.nsa, chunk, query, self._tokens(mixed, turned), compressed, 1 / math.sqrt(self.dim)
        )
        return gates[0] * branches[0] + gates[1] * branches[1] + gates[2] * branches[2]

    def new_state(self, rows: int, tokens: int) -> NSAState:
        groups = self.nsa.query_groups // self.config.tensor_model_parallel_size
        return NSAState(self.nsa, tokens, (rows, groups, self.dim), self.config.params_dtype)

    def _attend(self, gates: torch.Tensor, query: torch.Tensor, *keys_and_values: torch.Tensor) -> torch.Tensor:
        """Sum the branches' gated outputs (equation 5): gates [3, B · Hg, S, G, 1] → [B · Hg, S, G, D]."""
        nsa, scale = self.nsa, 1 / math.sqrt(self.dim)
        compressed_key, compressed_value, selected_key, selected_value, window_key, window_value = keys_and_values
        choice = Choice(nsa.select_block, nsa.select_count, nsa.compress_block, nsa.compress_stride)
        past = Reach(length=nsa.compress_block, stride=nsa.compress_stride)
        compressed, chosen = range_attention(query, compressed_key, compressed_value, scale, past, choice)
        assert chosen is not None
        selected = selected_attention(query, selected_key, selected_value, chosen, nsa.select_block, scale)
        window, _ = range_attention(query, window_key, window_value, scale, Reach(width=nsa.window))
        return gated_sum(gates, [compressed, selected, window], self.config.fuse)


def spec(model: Decoder, position: Position) -> ModuleSpec:
    """Return the ModuleSpec of the attention layer, projections included."""
    return ModuleSpec(module=NativeSparseAttention, params={"model": model, "position": position})
