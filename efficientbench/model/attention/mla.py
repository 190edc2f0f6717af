"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

Rotated pairs are halves apart, as everywhere here. DeepSeek's own weights have them side by side, which is the same
model with the rows of two projections in another order.

S = sequence, B = micro-batch, H = hidden size, N = query heads of this tensor-parallel rank, C = width of the latent,
P = width of the part of a key without position, R = width of the shared rotated key, E = width of a value.
"""

from __future__ import annotations

import functools
import math

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import checkpoint
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.variant import Decoder
from efficientbench.model.cache import Chunk, State, Stateful
from efficientbench.model.documents import Documents
from efficientbench.model.kernels.cached_attention import NAME as CACHED_ATTENTION
from efficientbench.model.kernels.cached_attention import cached_attention
from efficientbench.model.layers import RMSNorm, column_parallel, replicated, row_parallel
from efficientbench.model.position import Position


class Latents(State):
    """Each token's normalized latent, followed by the rotated key that all heads share."""

    def __init__(self, kept: torch.Tensor) -> None:
        """Take a tensor [B, 1, T, C + R]."""
        self.kept = kept


class MultiLatentAttention(Stateful, MegatronModule):
    """The attention layer, projections included: hidden states [S, B, H] → [S, B, H].

    For token t with hidden state h_t [H], and head n of N:

        c_t = norm(W_DKV h_t) [C],  r_t = RoPE(W_KR h_t) [R]
        k_tn = [W_UK,n c_t; r_t] [P + R],  v_tn = W_UV,n c_t [E]
        q_tn = W_UQ,n norm(W_DQ h_t) [P + R], or W_Q,n h_t if queries have no latent; RoPE rotates its last R dimensions
        o_tn = Σ_{j ≤ t} softmax_j(q_tn · k_jn / √(P + R)) v_jn [E]
        u_t = W_O [o_t1; …; o_tN] [H]

    All heads' keys and values come from one latent c_t per token; position is in the shared key r_t alone. Decoding
    therefore keeps C + R numbers of a token, [B, 1, T, C + R], however many heads there are. It multiplies W_UK into
    the queries and W_UV into the outputs, so that all heads attend to the latents themselves (section 2.1.2).

    Tensor parallelism splits heads, and every rank computes all latents. Megatron's own layer is not used, because
    without Transformer Engine it does not sum the shared key's gradient over ranks.
    """

    decodes_by = f"absorbed projections, {CACHED_ATTENTION}"

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        *,
        widths: MLAConfig,
        position: Position,
    ) -> None:
        super().__init__(config)
        self.widths, self.position, self.tp_group = widths, position, pg_collection.tp
        heads, hidden = config.num_attention_heads, config.hidden_size
        self.key_dim = widths.qk_nope_head_dim + widths.qk_rope_head_dim
        self.scale = 1 / math.sqrt(self.key_dim)
        if widths.q_lora_rank is None:
            self.linear_q_proj = column_parallel(config, hidden, heads * self.key_dim, self.tp_group)
        else:
            self.linear_q_down_proj = replicated(config, hidden, widths.q_lora_rank)
            self.q_layernorm = RMSNorm(config, widths.q_lora_rank, config.layernorm_epsilon)
            self.linear_q_up_proj = column_parallel(config, widths.q_lora_rank, heads * self.key_dim, self.tp_group)
        self.linear_kv_down_proj = replicated(config, hidden, widths.kv_lora_rank + widths.qk_rope_head_dim)
        self.kv_layernorm = RMSNorm(config, widths.kv_lora_rank, config.layernorm_epsilon)
        self.linear_kv_up_proj = column_parallel(
            config, widths.kv_lora_rank, heads * (widths.qk_nope_head_dim + widths.v_head_dim), self.tp_group
        )
        self.linear_proj = row_parallel(config, heads * widths.v_head_dim, hidden, self.tp_group)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: None = None,
        packed_seq_params: Documents | None = None,
        **unused: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend: hidden_states [S, B, H] → the same shape, and None for the bias.

        With sequence parallelism S is this rank's part. Megatron's TransformerLayer passes the unused arguments.
        `packed_seq_params`: the documents within which to attend; None: each sequence is one.
        """
        widths = self.widths
        latent, shared_key = self.linear_kv_down_proj(hidden_states).split(
            [widths.kv_lora_rank, widths.qk_rope_head_dim], dim=-1
        )
        latent = self.kv_layernorm(latent)
        if self.cache is not None and self._keep(latent, shared_key, self.cache.chunk):
            return self.linear_proj(self._absorbed(self._query(hidden_states), self.cache.chunk))
        key_value, _ = self.linear_kv_up_proj(latent)
        projected = self._query(hidden_states), key_value, self._for_all_heads(shared_key)
        attend = functools.partial(self._attend, packed_seq_params)
        if self.training and self.config.recompute_granularity == "selective":
            return self.linear_proj(checkpoint(attend, False, *projected))
        return self.linear_proj(attend(*projected))

    def _attend(
        self, documents: Documents | None, query: torch.Tensor, key_value: torch.Tensor, shared_key: torch.Tensor
    ) -> torch.Tensor:
        """Attend by keys and values of each head, without absorbed projections.

        Args:
            documents: as for `forward`.
            query: [S, B, N · (P + R)]
            key_value: [S, B, N · (P + E)]
            shared_key: [S, B, R], not rotated yet.

        Returns:
            [S, B, N · E]
        """
        widths = self.widths
        key, value = self._heads(key_value).split([widths.qk_nope_head_dim, widths.v_head_dim], dim=-1)
        position = self.position if self.cache is None else self.cache.chunk.at_positions(self.position)
        position = position if documents is None else documents.encoding(position)
        shared_key = position.rotate(shared_key.unsqueeze(2)).expand(-1, -1, key.shape[2], -1)
        query, key = position.rotate(self._heads(query)), torch.cat([key, shared_key], dim=-1)
        kernel = self.config.attention_kernel
        kernel = kernel if documents is None else functools.partial(documents.attend, kernel)
        return kernel(query, key, value, self.scale)

    def _keep(self, latent: torch.Tensor, shared_key: torch.Tensor, chunk: Chunk) -> bool:
        """Add normalized latents [S, B, C] and shared keys [S, B, R] to the state; return whether it had tokens."""
        assert isinstance(self.state, Latents)
        rotated = chunk.at_positions(self.position).rotate(shared_key.unsqueeze(2))
        chunk.keep(self.state.kept, torch.cat([latent.unsqueeze(2), rotated], dim=-1))
        return not chunk.fresh

    def _absorbed(self, query: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        """Attend to the state's latents: projected queries [S, B, N · (P + R)] → output [S, B, N · E]."""
        widths = self.widths
        assert isinstance(self.state, Latents)
        plain, rotated = (
            chunk.at_positions(self.position)
            .rotate(self._heads(query))
            .split([widths.qk_nope_head_dim, widths.qk_rope_head_dim], dim=-1)
        )
        by_head = self.linear_kv_up_proj.weight.view(self._local_heads, -1, widths.kv_lora_rank)
        to_key, to_value = by_head.split([widths.qk_nope_head_dim, widths.v_head_dim], dim=1)
        latent_query = torch.cat([torch.einsum("sbnd,ndc->sbnc", plain, to_key), rotated], dim=-1)
        kept = self.state.kept[:, :, : chunk.reach]
        latents = cached_attention(latent_query, kept, kept[..., : widths.kv_lora_rank], self.scale, chunk.mask())
        return torch.einsum("sbnc,nec->sbne", self._heads(latents), to_value).flatten(2)

    def new_state(self, rows: int, tokens: int) -> Latents:
        width = self.widths.kv_lora_rank + self.widths.qk_rope_head_dim
        return Latents(torch.zeros(rows, 1, tokens, width, dtype=self.config.params_dtype))

    def _query(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Project hidden states to queries: [S, B, H] → [S, B, N · (P + R)]."""
        if self.widths.q_lora_rank is None:
            return self.linear_q_proj(hidden_states)[0]
        return self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden_states)))[0]

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Split heads: [S, B, N · D] → [S, B, N, D]."""
        return x.view(*x.shape[:-1], self._local_heads, -1)

    @property
    def _local_heads(self) -> int:
        """N, the query heads of this tensor-parallel rank."""
        return int(self.config.num_attention_heads // self.tp_group.size())

    def _for_all_heads(self, shared_key: torch.Tensor) -> torch.Tensor:
        """Return the full sequence's shared key [S, B, R]; its gradient is summed over the tensor-parallel ranks."""
        if self.config.sequence_parallel:
            return gather_from_sequence_parallel_region(shared_key, group=self.tp_group)
        return copy_to_tensor_model_parallel_region(shared_key, group=self.tp_group)


def spec(model: Decoder, position: Position) -> ModuleSpec:
    """Return the ModuleSpec of the attention layer, projections included."""
    return ModuleSpec(module=MultiLatentAttention, params={"widths": model.attention, "position": position})
