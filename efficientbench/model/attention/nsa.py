"""Native Sparse Attention (arXiv 2502.11089, equations 5 to 12): compressed, selected and window branch, gated.

S = sequence, B = micro-batch, H = hidden size, D = head dimension, Hg = KV groups of this tensor-parallel rank,
G = query heads of a group, C = compressed keys.

RoPE turns the queries once, for all branches, and the keys of the selected and the window branch. Compressed keys are
made of unturned keys, to which φ adds the position within the block, and are turned by the position of their block's
first token: so their scores, too, depend on distances alone, which an MLP of turned keys would not grant.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import checkpoint, copy_to_tensor_model_parallel_region
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.config.model import ModelConfig
from efficientbench.model.attention.nsa_variant import BRANCHES, NSAConfig
from efficientbench.model.kernels.nsa.choose_blocks import Choice
from efficientbench.model.kernels.nsa.gate import gated_sum
from efficientbench.model.kernels.nsa.range_attention import range_attention
from efficientbench.model.kernels.nsa.reach import Reach
from efficientbench.model.kernels.nsa.selected_attention import selected_attention
from efficientbench.model.layers import column_parallel, row_parallel
from efficientbench.model.position import Position, position_table


class Compression(torch.nn.Module):
    """φ: the keys (or values) of a block → one, by an MLP with a position embedding within the block.

    The groups of a layer share it. Every tensor-parallel rank holds it whole, and sums its gradient over their groups.
    """

    def __init__(self, config: TransformerConfig, nsa: NSAConfig, dim: int, tp_group: torch.distributed.ProcessGroup):
        super().__init__()
        self.block, self.stride, self.tp_group = nsa.compress_block, nsa.compress_stride, tp_group
        place = {"dtype": config.params_dtype, "device": torch.get_default_device()}
        self.position = position_table(self.block, dim, config)
        self.weight_in = torch.nn.Parameter(torch.empty(dim, self.block * dim, **place))
        self.weight_out = torch.nn.Parameter(torch.empty(dim, dim, **place))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values [B, Hg, S, D] → [B, Hg, C, D]."""
        position, weight_in, weight_out = (
            copy_to_tensor_model_parallel_region(weight, group=self.tp_group)
            for weight in (self.position, self.weight_in, self.weight_out)
        )
        missing = self.block - x.shape[2]
        if missing > 0:
            # A sequence shorter than a block gets one key, which no query sees.
            x = F.pad(x, (0, 0, 0, missing))
        blocks = x.unfold(2, self.block, self.stride).transpose(3, 4) + position
        return F.silu(blocks.flatten(3) @ weight_in.t()) @ weight_out.t()


class NativeSparseAttention(MegatronModule):
    """The whole attention layer, projections included."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        model: ModelConfig,
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
        self, hidden_states: torch.Tensor, attention_mask: None = None, **unused: object
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend: hidden_states [S, B, H] → output [S, B, H] and no bias."""
        inputs = self._project(hidden_states)
        gates, _ = self.linear_gate(hidden_states)
        sequence, batch = gates.shape[:2]
        gates = gates.sigmoid().view(sequence, batch, -1, self.group, BRANCHES)
        gates = gates.permute(4, 1, 2, 0, 3).flatten(1, 2)[..., None]
        if self.config.recompute_granularity == "selective" and self.training:
            gated = checkpoint(self._attend, False, gates, *inputs)
        else:
            gated = self._attend(gates, *inputs)
        gated = gated.unflatten(0, (batch, -1)).permute(2, 0, 1, 3, 4)
        return self.linear_proj(gated.reshape(sequence, batch, -1))

    def _project(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return query [B · Hg, S, G, D], and each branch's keys and values [B · Hg, S or C, D], encoded."""
        mixed, _ = self.linear_qkv(hidden_states)
        sequence, batch = mixed.shape[:2]
        # Each group's query heads, keys and values lie together, so that a tensor-parallel rank holds whole groups.
        mixed = mixed.view(sequence, batch, -1, self.group + 2 * BRANCHES, self.dim)
        # Split and unbound, because their gradients are put together by one copy.
        to_turn, others = mixed.split([self.group + 2, 4], dim=3)
        compressed_key, compressed_value, *unturned = others.unbind(3)
        turned = self.position.rotate(to_turn.flatten(2, 3))
        turned = turned.unflatten(2, (-1, self.group + 2)).permute(1, 2, 0, 3, 4).flatten(0, 1)
        query, selected_key, window_key = turned.split([self.group, 1, 1], dim=2)
        compressed_key = self.compress_key(compressed_key.permute(1, 2, 0, 3))
        compressed_key = self.position.rotate(compressed_key.permute(2, 0, 1, 3), self.nsa.compress_stride)
        compressed_value = self.compress_value(compressed_value.permute(1, 2, 0, 3)).flatten(0, 1)
        selected_value, window_value = (value.permute(1, 2, 0, 3).flatten(0, 1) for value in unturned)
        return (
            query.contiguous(),
            compressed_key.permute(1, 2, 0, 3).flatten(0, 1),
            compressed_value,
            selected_key.squeeze(2).contiguous(),
            selected_value,
            window_key.squeeze(2).contiguous(),
            window_value,
        )

    def _attend(self, gates: torch.Tensor, query: torch.Tensor, *keys_and_values: torch.Tensor) -> torch.Tensor:
        """Add up the branches' gated outputs (equation 5): gates [3, B · Hg, S, G, 1] → [B · Hg, S, G, D]."""
        nsa, scale = self.nsa, 1 / math.sqrt(self.dim)
        compressed_key, compressed_value, selected_key, selected_value, window_key, window_value = keys_and_values
        choice = Choice(nsa.select_block, nsa.select_count, nsa.compress_block, nsa.compress_stride)
        past = Reach(length=nsa.compress_block, stride=nsa.compress_stride)
        compressed, chosen = range_attention(query, compressed_key, compressed_value, scale, past, choice)
        assert chosen is not None
        selected = selected_attention(query, selected_key, selected_value, chosen, nsa.select_block, scale)
        window, _ = range_attention(query, window_key, window_value, scale, Reach(width=nsa.window))
        return gated_sum(gates, [compressed, selected, window], self.config.fuse)


def spec(model: ModelConfig, position: Position) -> ModuleSpec:
    """Return the ModuleSpec of the whole attention layer, projections included."""
    return ModuleSpec(module=NativeSparseAttention, params={"model": model, "position": position})
