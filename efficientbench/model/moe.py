"""Mixture of experts in place of the feed-forward layer: Megatron's MoELayer with experts of our own.

The router is Megatron's, and so are dispatch and combine where ranks split the experts (see `token_dispatch`).
Dropless: every chosen expert computes its token.
N = token copies that this rank's experts received, E = experts on this rank, H = hidden size, F = feed-forward width
of an expert (under expert tensor parallelism, this rank's share of it).

The auxiliary loss of a layer of n experts is n · Σ_e f_e · P_e (arXiv 2101.03961, equation 4): f_e is the share of
choices that fell on expert e, which has no gradient, and P_e the mean of its probabilities. `model.moe.auxiliary_over`
says over which tokens:

micro_batch  f and P over each micro-batch of a replica; the mean over micro-batches. Megatron's `aux_loss`.
sequence     f and P over each sequence; the mean over sequences (arXiv 2412.19437, equations 17 to 20, but for the
             factor). Megatron's `seq_aux_loss`.
global       P over the step's global batch, and f over that of the last step that was not skipped:
             n · Σ_e f_e(t − 1) · P_e(t).

The loss over the global batch of arXiv 2501.11873 is n · Σ_e f_e(t) · P_e(t), but f(t) is known only after the last
micro-batch. That paper, and Megatron's `global_aux_loss`, take the choices of the micro-batches so far, so that a loss
depends on how many there are, and the first one's on itself alone. With f(t − 1) the loss is linear in P(t): its mean
over micro-batches of any size and over ranks of any layout is that of the global batch, without a second forward pass.
In step 1 no choice was made, and all f_e are 1 / n: the loss is 1 and its gradient 0, as with experts in balance.

The bias of arXiv 2408.15664 is added to the scores to choose experts, and does not weigh them. After a step that was
not skipped, b_e ← b_e + rate · sign(mean load − load of e), over the global batch. Megatron would sum the loads over
ranks a second time, and move the bias in a skipped step too. The losses over a micro-batch and a sequence count the
choices without the bias (arXiv 2412.19437, equation 18), the one over the global batch those that were made.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.model.kernels.grouped_mm import RowGroups, accumulate_weight_gradient, grouped_mm
from efficientbench.model.kernels.quantized import QuantizedExperts
from efficientbench.model.kernels.weight_gradient import added_to_main_grad
from efficientbench.model.layers import FeedForward, activate, feed_forward_spec


class Router(TopKRouter):
    """Megatron's top-k router, which also sums tokens and losses on its device until `take_routing` reads them."""

    def __init__(self, config: TransformerConfig, pg_collection: ProcessGroupCollection | None = None) -> None:
        super().__init__(config, pg_collection)
        # The sum of this rank's auxiliary losses, then the number of tokens sent to each expert. float32, which every
        # device has, counts exactly to 16 million, more tokens than a rank sends to an expert in a step.
        self.counted = torch.zeros(1 + self.num_experts, dtype=torch.float32, device=torch.get_default_device())
        self.shares = torch.full_like(self.counted[1:], 1 / self.num_experts) if config.last_shares else None
        """[experts] float32, each expert's share of the choices of the step before; None: those of now count."""
        if config.bias_rate is not None:
            # Megatron's own would be on a CUDA device.
            del self.expert_bias
            self.register_buffer("expert_bias", torch.zeros_like(self.counted[1:]))

    def forward(
        self, input: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Route input [S, B, H] → weights and choices [S · B, experts]."""
        weights, chosen = super().forward(input, padding_mask)
        # Do not count validation, and count recomputed activations once.
        if self.training and torch.is_grad_enabled():
            self.counted[1:] += chosen.sum(dim=0)
        return weights, chosen

    def balance(self, counts: torch.Tensor, choices: int) -> None:
        """Take the loads of a step: counts [experts] int64 of the global batch, in all so many choices."""
        if self.shares is not None:
            self.shares.copy_(counts.float() / choices)
        if self.expert_bias is not None:
            # The mean times the number of experts, so that whole numbers are compared.
            self.expert_bias += self.config.bias_rate * torch.sign(choices - self.num_experts * counts)

    def _apply_expert_bias(self, routing_map: torch.Tensor, padding_mask: torch.Tensor | None = None) -> None:
        """Do nothing: `forward` counts the choices. Megatron's own method needs a compiler."""

    def _apply_aux_loss(
        self,
        probs: torch.Tensor,
        scores_for_aux_loss: torch.Tensor,
        routing_map: torch.Tensor,
        with_padding_mask: bool = False,
    ) -> torch.Tensor:
        """Add the auxiliary loss's gradient to that of `probs`.

        Args:
            probs: [tokens, experts], weights of the chosen experts.
            scores_for_aux_loss: [tokens, experts], probabilities over all experts.
            routing_map: [tokens, experts], whether an expert was chosen.
            with_padding_mask: whether tokens are masked, which no caller does.
        """
        if self.shares is None:
            return super()._apply_aux_loss(probs, scores_for_aux_loss, routing_map, with_padding_mask)
        factor = self.get_aux_loss_coeff("aux_loss")
        # This rank's part of the mean over the tokens of the micro-batch, which tp and cp ranks share.
        tokens = len(scores_for_aux_loss) * self.tp_cp_group.size()
        loss = factor * self.num_experts * (scores_for_aux_loss.sum(dim=0) * self.shares).sum() / tokens
        return self.attach_and_log_load_balancing_loss(probs, factor, loss)

    def attach_and_log_load_balancing_loss(
        self, activation: torch.Tensor, aux_loss_coeff: float, aux_loss: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Add the auxiliary loss's gradient to that of `activation`; sum the loss here, not in Megatron's global."""
        self.counted[0] += aux_loss.detach() / aux_loss_coeff
        return MoEAuxLossAutoScaler.apply(activation, aux_loss)


def routers(model: GPTModel) -> list[Router]:
    """Return the routers of this stage's layers with experts."""
    return [layer.mlp.router for layer in model.decoder.layers if isinstance(layer.mlp, MoELayer)]


def take_routing(model: GPTModel) -> torch.Tensor | None:
    """Return the counts of this stage's routers since the last call, and reset them.

    Returns:
        [layers of all stages, 1 + experts] float32: the sum of auxiliary losses without their factor, then the tokens
        of each expert; zero for the layers of other stages, and for those without experts. The sum over all ranks is
        that of the run. None for a model without experts.
    """
    config, own = model.config, routers(model)
    if config.num_moe_experts is None:
        return None
    taken = own[0].counted.new_zeros(config.num_layers, 1 + config.num_moe_experts)
    for router in own:
        taken[router.layer_number - 1] = router.counted
        router.counted.zero_()
    return taken


def balance(model: GPTModel, counts: torch.Tensor, choices: int) -> None:
    """Give this stage's routers the loads of a step: counts [layers of all stages, experts], as `Router.balance`."""
    for router in routers(model):
        router.balance(counts[router.layer_number - 1], choices)


class GroupedLinearFunction(torch.autograd.Function):
    """Each expert's linear layer on its own rows; adds weight gradients to `main_grad`, as Megatron's layers do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, groups: RowGroups) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        # The parameter itself, because Megatron sets `main_grad` on it.
        ctx.parameter, ctx.groups = weight, groups
        return grouped_mm(x, weight.transpose(1, 2), groups)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad_x = grouped_mm(grad_outputs[0], weight, ctx.groups) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            accumulate_weight_gradient(x, grad_outputs[0], ctx.groups, ctx.parameter.main_grad)
            grad_weight = added_to_main_grad(ctx.parameter)
        return grad_x, grad_weight, None


class GroupedLinear(torch.nn.Module):
    """One linear layer, without bias, of all experts on this rank."""

    weight: torch.nn.Parameter | QuantizedExperts

    def __init__(
        self, config: TransformerConfig, experts: int, outputs: int, inputs: int, partition_dim: int, stride: int
    ) -> None:
        """`partition_dim`, `stride`: how expert tensor parallelism splits the weight [experts, outputs, inputs]."""
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.empty(experts, outputs, inputs, dtype=config.params_dtype, device=torch.get_default_device())
        )
        set_tensor_model_parallel_attributes(self.weight, is_parallel=True, dim=partition_dim, stride=stride)
        # False: Megatron reduces gradients over the ranks with the same experts, not over all data-parallel ranks.
        self.weight.allreduce = config.expert_model_parallel_size == 1  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor, groups: RowGroups) -> torch.Tensor:
        """Multiply x [N, inputs], grouped by expert → [N, outputs]."""
        if isinstance(self.weight, QuantizedExperts):
            return self.weight(x, groups)
        if not torch.is_grad_enabled():
            return grouped_mm(x, self.weight.transpose(1, 2), groups)
        return GroupedLinearFunction.apply(x, self.weight, groups)


class Experts(MegatronModule):
    """This rank's experts: feed-forward layers of the dense layer's form, computed by grouped matmuls."""

    def __init__(
        self, num_local_experts: int, config: TransformerConfig, pg_collection: ProcessGroupCollection
    ) -> None:
        super().__init__(config)
        hidden, width = config.hidden_size, config.moe_ffn_hidden_size // pg_collection.expt_tp.size()
        # Gate and up projection side by side: a stride of two.
        parts = 2 if config.gated_linear_unit else 1
        self.linear_fc1 = GroupedLinear(config, num_local_experts, parts * width, hidden, partition_dim=1, stride=parts)
        self.linear_fc2 = GroupedLinear(config, num_local_experts, hidden, width, partition_dim=2, stride=1)

    def forward(
        self, tokens: torch.Tensor, tokens_per_expert: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Compute each token by its expert, times the router's weight.

        Args:
            tokens: [N, H], sorted by expert.
            tokens_per_expert: [E], on the host where ranks split the experts, else on the device.
            weights: [N], the router's weights.

        Returns:
            [N, H], and None for the bias.
        """
        groups = RowGroups(tokens_per_expert, tokens.device)
        out = self.linear_fc2(activate(self.linear_fc1(tokens, groups), self.config), groups)
        return (out * weights[:, None]).to(out.dtype), None


class SharedExperts(FeedForward):
    """The experts that compute every token, as one feed-forward layer, which tensor-parallel ranks split."""

    def __init__(
        self, config: TransformerConfig, submodules: MLPSubmodules, pg_collection: ProcessGroupCollection, gate: bool
    ) -> None:
        """`gate`: Megatron's gate on the output, which none of our configurations asks for."""
        # Megatron's second projection reads the width of the configuration.
        own = copy(config)
        own.ffn_hidden_size = config.moe_shared_expert_intermediate_size
        super().__init__(own, submodules, ffn_hidden_size=own.ffn_hidden_size, tp_group=pg_collection.tp)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Compute hidden_states [S, B, H] → output [S, B, H]."""
        return super().forward(hidden_states)[0]


def spec() -> ModuleSpec:
    """Return the ModuleSpec of the mixture of experts, router and shared experts included."""
    shared = ModuleSpec(module=SharedExperts, submodules=feed_forward_spec().submodules)
    experts = ModuleSpec(module=Experts)
    return ModuleSpec(module=MoELayer, submodules=MoESubmodules(experts=experts, shared_experts=shared, router=Router))
