"""How tokens get to the experts that were chosen for them, and their results back.

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
    """A copy of each token for each of its experts, those of the first expert first, each expert's in their order.

    In place of megatron's function of this name and for its dropless dispatch alone: same rows, but the host does not
    wait for the device to tell their number, which it knows.

    Args:
        tokens: [N, H]
        routing_map: [N, E], True where an expert was chosen.
        probs: [N, E], the router's weights.
        num_out_tokens: N · K
        fused, drop_and_pad: megatron's other ways, which no configuration of ours chooses.

    Returns:
        Rows [N · K, H], their weights [N · K], and the token of each row [N · K].

    Raises:
        NotImplementedError: fused or drop_and_pad.
    """
    if fused or drop_and_pad:
        raise NotImplementedError("megatron's fused permutation, or one with a capacity")
    # A stable sort by "not chosen" lists the chosen ones in their order. In float16, because integers are sorted by the
    # slow processor beside the cores on most Ascend chips.
    chosen = routing_map.t().reshape(-1).to(torch.float16).argsort(descending=True, stable=True)[:num_out_tokens]
    token_of_row = chosen % len(tokens)
    weights = probs.t().reshape(-1).index_select(0, chosen)
    return tokens.index_select(0, token_of_row), weights, token_of_row


class LocalDispatcher(MoETokenDispatcher):
    """For a rank that has all experts, whole: rows are sorted by expert, and what counts them stays on the device.

    megatron's dispatchers bring the counts to the host and wait for them, with one rank as with many.
    """

    def dispatch_preprocess(
        self, tokens: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens [S, B, H], routing_map and probs [N, E] → rows [N · K, H] and their weights [N · K]."""
        self.shape = tokens.shape
        self.tokens_per_expert = routing_map.sum(dim=0)
        copies = len(routing_map) * self.config.moe_router_topk
        rows, weights, self.token_of_row = permute(tokens.view(-1, self.shape[-1]), routing_map, probs, copies)
        return rows, weights

    def token_dispatch(self, hidden_states: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows are where their experts are."""
        return hidden_states, probs

    def dispatch_postprocess(
        self, hidden_states: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, how many of them each expert has [E] on the device, and their weights."""
        return hidden_states, self.tokens_per_expert, probs

    def combine_preprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The rows are in order."""
        return hidden_states

    def token_combine(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The rows are where their tokens are."""
        return hidden_states

    def combine_postprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Rows [N · K, H] → their sums for each token [S, B, H]."""
        tokens = self.shape[:-1].numel(), self.shape[-1]
        summed: torch.Tensor = unpermute(hidden_states, self.token_of_row, restore_shape=tokens)
        return summed.view(self.shape)


def dispatcher(
    num_local_experts: int,
    local_expert_indices: list[int],
    config: TransformerConfig,
    pg_collection: ProcessGroupCollection,
) -> MoETokenDispatcher:
    """What serves a layer's ranks.

    Where experts are shared out it is megatron's all-to-all, for which the host must know how many rows each rank sends
    and receives: it waits once in each layer's forward pass, for the counts alone.
    """
    if pg_collection.ep.size() == pg_collection.expt_tp.size() == 1:
        return LocalDispatcher(config, pg_collection)
    return MoEAlltoAllTokenDispatcher(num_local_experts, local_expert_indices, config, pg_collection)
