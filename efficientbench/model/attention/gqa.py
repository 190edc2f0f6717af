"""Grouped-query attention (arXiv 2305.13245): MQA with one group, MHA with as many groups as heads.

With a sliding window, sinks, or an output gate where its keys ask for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.variant import Decoder
from efficientbench.model import context_parallel
from efficientbench.model.cache import Chunk, KeysAndValues, Ring, Stateful
from efficientbench.model.documents import Documents
from efficientbench.model.kernels.biased_attention import biased_by_blocks, biased_causal_attention
from efficientbench.model.kernels.cached_attention import NAME as CACHED_ATTENTION
from efficientbench.model.kernels.cached_attention import cached_attention
from efficientbench.model.kernels.causal_attention import AttentionKernel, causal_attention
from efficientbench.model.kernels.norm import rms_norm
from efficientbench.model.kernels.window_attention import window_attention
from efficientbench.model.layers import RMSNorm, split_parameter
from efficientbench.model.position import Position

KeptKernel: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor], torch.Tensor]
"""Attention to kept keys and values: see `attend_kept` of `spec`."""


class CoreAttention(Stateful, MegatronModule):
    """Positional encoding and causal attention, between the projections that Megatron's SelfAttention holds."""

    decodes_by = CACHED_ATTENTION

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        cp_comm_type: str | None = None,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        position: Position,
        attend: AttentionKernel | None = None,
        attend_kept: KeptKernel | None = None,
        window: int | None = None,
        sinks: bool = False,
    ) -> None:
        """`attend`, `attend_kept`: as of `spec`.

        `window`: keys that a query sees; None: all before it. `sinks`: whether each head has a sink.
        """
        super().__init__(config)
        self.scale = softmax_scale or 1 / math.sqrt(config.kv_channels)
        self.position, self.attend, self.attend_kept, self.window = position, attend, attend_kept, window
        heads = config.num_attention_heads // config.tensor_model_parallel_size
        self.sinks = split_parameter(config, (heads,)) if sinks else None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: None = None,
        packed_seq_params: Documents | None = None,
    ) -> torch.Tensor:
        """Attend with this tensor-parallel rank's heads: query [S, B, heads, D], key and value [S, B, groups, D].

        `packed_seq_params`: the documents within which to attend; None: each sequence is one. Megatron passes the
        other arguments, which are not used.

        Returns:
            [S, B, heads · D]
        """
        documents = packed_seq_params
        position = self.position if self.cache is None else self.cache.chunk.at_positions(self.position)
        position = position if documents is None else documents.encoding(position)
        query, key = position.rotate(query), position.rotate(key)
        if self.config.qk_layernorm and not self.config.norm_weights:
            query, key = (rms_norm(x, None, self.config.layernorm_epsilon, self.config.fuse) for x in (query, key))
        if documents is not None:
            kernel, of_parts = self._kernels(query.shape[0])
            return documents.attend(kernel, query, key, value, self.scale, of_parts)
        if self.cache is not None:
            chunk = self.cache.chunk
            if self.window is not None and not chunk.fresh:
                return self._continue_window(query, key, value, chunk, self.window)
            kept = self._keep(key, value, chunk)
            if not chunk.fresh and self.attend_kept is not None:
                return self.attend_kept(query, *kept, self.scale, chunk.mask())
            if not chunk.fresh:
                return cached_attention(query, *kept, self.scale, chunk.mask(), self.sinks)
        if self.attend is not None:
            return self.attend(query, key, value, self.scale)
        own = self._own_kernel()
        if own is not None and context_parallel.is_shared():
            return context_parallel.attention(query, key, value, self.scale, own)
        if own is not None:
            return own(query, key, value, self.scale)
        bias = self.position.bias(query.shape[0])
        if bias is not None:
            return biased_causal_attention(query, key, value, self.scale, bias)
        return self.config.attention_kernel(query, key, value, self.scale)

    def _own_kernel(self, by_blocks: bool = False) -> AttentionKernel | None:
        """Return the kernel of a window or of sinks; None without them."""
        if self.window is None and self.sinks is None:
            return None
        return functools.partial(window_attention, window=self.window, sinks=self.sinks, by_blocks=by_blocks)

    def _kernels(self, longest: int) -> tuple[AttentionKernel, AttentionKernel]:
        """Return the kernels of a document of at most `longest` tokens, and of the last queries of one."""
        own = self.attend or self._own_kernel(by_blocks=True)
        if own is not None:
            return own, own
        bias = self.position.bias(longest)
        return self.config.attention_kernel if bias is None else biased_by_blocks(bias), causal_attention

    def _keep(self, key: torch.Tensor, value: torch.Tensor, chunk: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
        """Add encoded keys and values [S, B, groups, D] to the state; return all tokens' [B, groups, reach, D]."""
        assert isinstance(self.state, KeysAndValues)
        if isinstance(self.state, Ring):
            self.state.keep(chunk, key, value)
            return self.state.keys, self.state.values
        chunk.keep(self.state.keys, key)
        chunk.keep(self.state.values, value)
        return self.state.keys[:, :, : chunk.reach], self.state.values[:, :, : chunk.reach]

    def _continue_window(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunk: Chunk, window: int
    ) -> torch.Tensor:
        """Attend to the tokens in the ring and to the chunk's, then keep these: arguments as of `forward`."""
        assert isinstance(self.state, Ring)
        # Joined before the ring is written, since a chunk's last tokens replace what its first ones see.
        keys = torch.cat([self.state.keys, key.permute(1, 2, 0, 3)], dim=2)
        values = torch.cat([self.state.values, value.permute(1, 2, 0, 3)], dim=2)
        attended = cached_attention(query, keys, values, self.scale, self.state.hidden(chunk, window), self.sinks)
        self.state.keep(chunk, key, value)
        return attended

    def new_state(self, rows: int, tokens: int) -> KeysAndValues:
        if self.attend is not None and self.attend_kept is None:
            raise TypeError("`attend` computes whole sequences: `attend_kept` must continue from a state")
        groups = max(self.config.num_query_groups // self.config.tensor_model_parallel_size, 1)
        places = min(tokens, self.window or tokens)
        shape = rows, groups, places, self.config.kv_channels
        keys, values = (torch.zeros(shape, dtype=self.config.params_dtype) for _ in range(2))
        return KeysAndValues(keys, values) if self.window is None else Ring(keys, values)


class GroupedQueryAttention(SelfAttention):
    """Megatron's attention layer, which in evaluation calls its parts directly, as `Layer` does."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: None = None, **others: object
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend: hidden_states [S, B, H] → the same shape, and a bias or None; `others` as in `Layer.forward`."""
        if self.training or torch.is_grad_enabled():
            return super().forward(hidden_states, attention_mask, **others)
        documents, gated = others.get("packed_seq_params"), self.config.attention_output_gate
        query, key, value, *gate = self.get_query_key_value_tensors(hidden_states, output_gate=gated)
        attended = self.core_attention(query, key, value, attention_mask, packed_seq_params=documents)
        return self.linear_proj(self._apply_output_gate(attended, *gate) if gated else attended)

    def _apply_output_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Multiply the heads' outputs [S, B, heads · D] by the sigmoids of gates [S, B, heads, D].

        Where tensor-parallel ranks share a group, Megatron hands each the gates of all heads of the group.
        """
        heads, all_heads = x.shape[-1] // gate.shape[-1], gate.shape[2]
        first = self.pg_collection.tp.rank() % (all_heads // heads) * heads
        return x * gate[:, :, first : first + heads].flatten(2).sigmoid()


def spec(
    model: Decoder,
    position: Position,
    attend: AttentionKernel | None = None,
    attend_kept: KeptKernel | None = None,
) -> ModuleSpec:
    """Return the ModuleSpec of the attention layer, projections included.

    Args:
        model: the run's model.
        position: its positional encoding, which rotates queries and keys before the scores.
        attend: a kernel for another kind of scores, for variants that share all else; None: causal attention.
        attend_kept: computes these scores in decoding: query [S, B, heads, D], the keys and values of all tokens so far
            [B, groups, T, D], scale, and what to add to scores, [B, 1, S, T]: 0, or −∞ for later keys; returns
            [S, B, heads · D]. None: a layer with `attend` does not generate.
    """
    # Norms without weights commute with the rotation. CoreAttention applies them after it, as nanochat does, so that
    # the rounding of the angles does not change a length.
    attention = model.attention if isinstance(model.attention, GQAConfig) else GQAConfig()
    head_norm = RMSNorm if model.qk_norm and model.norm_weights else None
    return ModuleSpec(
        module=GroupedQueryAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=functools.partial(
                CoreAttention,
                position=position,
                attend=attend,
                attend_kept=attend_kept,
                window=attention.window,
                sinks=bool(attention.sinks),
            ),
            linear_proj=RowParallelLinear,
            q_layernorm=head_norm,
            k_layernorm=head_norm,
        ),
    )
