"""Send tokens to the experts that were chosen for them, and their results back.

N = this rank's tokens, E = experts of the layer, K = experts of a token, H = hidden size.
"""

from __future__ import annotations

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.moe_utils import unpermute
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher, MoETokenDispatcher


def permute(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor,
    num_out_tokens: int,
    fused: bool = False,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy each token once for each of its experts, and sort the copies by expert, then by token.

    Replaces Megatron's function of this name for dropless dispatch. The rows are the same, but the host does not wait
    for the device to learn their number, which it knows.

    Args:
        tokens: [N, H]
        routing_map: [N, E], True where an expert was chosen.
        probs: [N, E], the router's weights.
        num_out_tokens: N · K
        fused: Megatron's fused permutation, which none of our configurations asks for.
        drop_and_pad: Megatron's capacity limit, which none of our configurations asks for.

    Returns:
        Rows [N · K, H], their weights [N · K], and the token number of each row [N · K].

    Raises:
        NotImplementedError: `fused` or `drop_and_pad` is set.
    """
    if fused or drop_and_pad:
        raise NotImplementedError("Megatron's fused permutation, or one with a capacity")
    # A stable sort puts the chosen entries first, in their order. In float16, because most Ascend chips sort integers
    # on the slow processor beside the cores.
    chosen = routing_map.t().reshape(-1).to(torch.float16).argsort(descending=True, stable=True)[:num_out_tokens]
    token_of_row = chosen % len(tokens)
    weights = probs.t().reshape(-1).index_select(0, chosen)
    return tokens.index_select(0, token_of_row), weights, token_of_row


class LocalDispatcher(MoETokenDispatcher):
    """The dispatcher of a rank that has all experts unsplit: sorts rows by expert, and leaves the counts on the device.

    Megatron's dispatchers copy the counts to the host and wait for them, even with one rank.
    """

    def dispatch_preprocess(
        self, tokens: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sort tokens [S, B, H] by routing_map and probs [N, E] → rows [N · K, H] and their weights [N · K]."""
        self.shape = tokens.shape
        self.tokens_per_expert = routing_map.sum(dim=0)
        copies = len(routing_map) * self.config.moe_router_topk
        rows, weights, self.token_of_row = permute(tokens.view(-1, self.shape[-1]), routing_map, probs, copies)
        return rows, weights

    def token_dispatch(self, hidden_states: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows unchanged: their experts are on this rank."""
        return hidden_states, probs

    def dispatch_postprocess(
        self, hidden_states: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows, the number of rows of each expert [E] on the device, and the rows' weights."""
        return hidden_states, self.tokens_per_expert, probs

    def combine_preprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the rows unchanged: they are in order."""
        return hidden_states

    def token_combine(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the rows unchanged: their tokens are on this rank."""
        return hidden_states

    def combine_postprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Sum the rows [N · K, H] of each token → [S, B, H]."""
        tokens = self.shape[:-1].numel(), self.shape[-1]
        summed: torch.Tensor = unpermute(hidden_states, self.token_of_row, restore_shape=tokens)
        return summed.view(self.shape)


def dispatcher(
    num_local_experts: int,
    local_expert_indices: list[int],
    config: TransformerConfig,
    pg_collection: ProcessGroupCollection,
) -> MoETokenDispatcher:
    """Return the dispatcher of a layer.

    Where ranks split the experts it is Megatron's all-to-all. For that the host must know how many rows each rank sends
    and receives, so it waits once in each layer's forward pass, for the counts alone.
    """
    if pg_collection.ep.size() == pg_collection.expt_tp.size() == 1:
        return LocalDispatcher(config, pg_collection)
    return MoEAlltoAllTokenDispatcher(num_local_experts, local_expert_indices, config, pg_collection)
