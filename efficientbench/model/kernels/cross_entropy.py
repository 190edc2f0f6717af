"""Output projection and cross-entropy in one pass over blocks of tokens: a batch's logits never exist all at once.

A bound c (`softcap`) replaces the logits z by c · tanh(z / c) (arXiv 2408.00118, section 2), computed in float32.
N = tokens, H = hidden size, V = vocabulary on this tensor-parallel rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

from efficientbench.model.kernels import product
from efficientbench.model.kernels.fusion import fused
from efficientbench.model.kernels.weight_gradient import add_product, added_to_main_grad

NAME = "linear + cross-entropy over blocks of tokens, gradient in the forward pass"
FUSED = f"{NAME}, softmax and gradient by torch.compile"


def name(fuse: bool, device_type: str, dtype: torch.dtype) -> str:
    """Return how the loss is computed on a device type."""
    by = f", products by {product.ONEDNN}" if product.by_onednn(product.LINEAR, device_type, dtype) else ""
    return (FUSED if fuse else NAME) + by


@dataclass(frozen=True)
class LossKernel:
    """The loss's block size and kernels."""

    block_logits: int = 2**24
    """Logits in one block: enough rows for the matmul's full speed, few enough to bound memory (64 MiB in float32)."""
    fuse: bool = False
    """Whether compiled kernels compute softmax and gradient, without a float32 copy of the logits."""
    gradient_is_one: bool = False
    """The caller's promise that the loss's own gradient is 1. The forward pass then adds the table's gradient to its
    `main_grad`, instead of keeping it in float32 until the backward pass knows the factor."""

    def rows(self, vocabulary: int) -> int:
        """Return the number of tokens in one block."""
        return max(self.block_logits // vocabulary, 1)


class LinearCrossEntropy(torch.autograd.Function):
    """Σ weight_n · (−log softmax(logits_n)[label_n]); computes its gradients, up to a factor, in the forward pass.

    logits_n = hidden_n Wᵀ, or with a softcap c · tanh(hidden_n Wᵀ / c).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        embedding: torch.Tensor,
        vocabulary: int,
        labels: torch.Tensor,
        token_weights: torch.Tensor,
        group: ProcessGroup,
        kernel: LossKernel,
        softcap: float | None,
        looked_up: bool,
        with_gradient: bool,
    ) -> torch.Tensor:
        weight = embedding[:vocabulary]
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if with_gradient else None
        at_once = with_gradient and kernel.gradient_is_one and hasattr(embedding, "main_grad")
        grad_weight = None
        if at_once:
            grad_weight = embedding.main_grad[:vocabulary]  # type: ignore[attr-defined]
        elif with_gradient:
            grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        rows = min(kernel.rows(vocabulary), hidden.shape[0])
        # One block's memory serves all: the system would clear new memory of this size for each.
        memory = wide = None
        if not product.by_onednn(product.LINEAR, hidden.device.type, hidden.dtype):
            memory = torch.empty(rows, vocabulary, dtype=hidden.dtype, device=hidden.device)
        if hidden.dtype != torch.float32 and not kernel.fuse:
            wide = torch.empty(rows, vocabulary, device=hidden.device)
        for first in range(0, hidden.shape[0], rows):
            block = slice(first, first + rows)
            out = None if memory is None else memory[: len(hidden[block])]
            logits = product.linear(hidden[block], weight, out=out)
            arguments = (logits, labels[block], token_weights[block], group, with_gradient, softcap)
            losses, grad_logits = _fused_loss(*arguments) if kernel.fuse else _loss(*arguments, wide)
            loss += losses @ token_weights[block]
            if grad_hidden is None or grad_weight is None or grad_logits is None:
                continue
            product.linear(grad_logits, weight.t(), out=grad_hidden[block])
            add_product(grad_weight, grad_logits, hidden[block])
        ctx.save_for_backward(grad_hidden, None if at_once else grad_weight)
        ctx.embedding, ctx.looked_up = embedding, looked_up
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale, embedding = grad_outputs[0], ctx.embedding
        if grad_weight is None:
            return grad_hidden, None if ctx.looked_up else added_to_main_grad(embedding), *[None] * 8
        grad_hidden.mul_(scale)
        grad_weight.mul_(scale)
        if hasattr(embedding, "main_grad"):
            # As the linear layers do, without a second or a rounded copy of the table's gradient.
            embedding.main_grad[: grad_weight.shape[0]] += grad_weight
            grad_embedding = None if ctx.looked_up else added_to_main_grad(embedding)
            return grad_hidden, grad_embedding, *[None] * 8
        padding = embedding.shape[0] - grad_weight.shape[0]
        grad_embedding = torch.nn.functional.pad(grad_weight, (0, 0, 0, padding)).to(embedding.dtype)
        return grad_hidden, grad_embedding, *[None] * 8


def _loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
    group: ProcessGroup,
    with_gradient: bool,
    softcap: float | None,
    wide: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return losses [N] and, with `with_gradient`, the weighted losses' gradient by the unbounded logits [N, V].

    The gradient overwrites the logits, which `wide` [N or more, V] holds in float32 unless they are.
    """
    bounded, slope = logits if wide is None else wide[: len(logits)].copy_(logits), None
    if softcap is not None:
        bounded, slope = _bounded(bounded, softcap)
    losses, probabilities, target, owned = _softmax(bounded, labels, group)
    if not with_gradient:
        return losses, None
    probabilities[torch.arange(len(target), device=target.device), target] -= owned
    if slope is not None:
        probabilities.mul_(slope)
    probabilities.mul_(weights[:, None])
    return losses, probabilities if wide is None else logits.copy_(probabilities)


def _bounded(logits: torch.Tensor, softcap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bounded logits and their derivative, both float32 [N, V]; the float32 logits are overwritten."""
    ratio = logits.div_(softcap).tanh_()
    return ratio * softcap, ratio.square_().neg_().add_(1)


def _fused_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
    group: ProcessGroup,
    with_gradient: bool,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `_loss` by compiled kernels, which read the logits two or three times and make no float32 copy."""
    largest, total, target_logit = fused(_statistics)(logits, labels, softcap)
    if group.size() > 1:
        largest_here = largest.clone()
        all_reduce(largest, op=ReduceOp.MAX, group=group)
        sums = torch.stack([total * torch.exp(largest_here - largest), target_logit])
        all_reduce(sums, group=group)
        total, target_logit = sums.unbind()
    log_total = largest + total.log()
    grad_logits = fused(_grad_logits)(logits, labels, weights, log_total, softcap) if with_gradient else None
    return log_total - target_logit, grad_logits


def _statistics(
    logits: torch.Tensor, labels: torch.Tensor, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return [N] each: the largest logit, Σ exp(logit − largest), and the label's logit (0 if another rank has it)."""
    wide = logits.float()
    if softcap is not None:
        wide = softcap * torch.tanh(wide / softcap)
    largest = wide.amax(dim=-1)
    total = torch.exp(wide - largest[:, None]).sum(dim=-1)
    owned = (labels >= 0) & (labels < logits.shape[1])
    target = logits.gather(1, labels.clamp(0, logits.shape[1] - 1)[:, None]).squeeze(1).float()
    if softcap is not None:
        target = softcap * torch.tanh(target / softcap)
    return largest, total, torch.where(owned, target, 0.0)


def _grad_logits(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
    log_total: torch.Tensor,
    softcap: float | None,
) -> torch.Tensor:
    columns = torch.arange(logits.shape[1], device=logits.device)
    wide = logits.float()
    if softcap is not None:
        ratio = torch.tanh(wide / softcap)
        wide, weights = softcap * ratio, (1 - ratio * ratio) * weights[:, None]
    else:
        weights = weights[:, None]
    probabilities = torch.exp(wide - log_total[:, None])
    return ((probabilities - (columns == labels[:, None]).float()) * weights).to(logits.dtype)


def _softmax(
    logits: torch.Tensor, labels: torch.Tensor, group: ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return losses [N], probabilities [N, V], the labels' columns [N], and 1 where this rank has the label [N].

    The float32 logits [N, V] are overwritten by the probabilities.
    """
    parallel = group.size() > 1
    largest = logits.amax(dim=-1)
    if parallel:
        all_reduce(largest, op=ReduceOp.MAX, group=group)
    logits.sub_(largest[:, None])
    owned = ((labels >= 0) & (labels < logits.shape[1])).float()
    target = labels.clamp(0, logits.shape[1] - 1)
    target_logit = logits.gather(1, target[:, None]).squeeze(1) * owned
    exponentials = logits.exp_()
    total = exponentials.sum(dim=-1)
    if parallel:
        all_reduce(target_logit, group=group)
        all_reduce(total, group=group)
    return total.log() - target_logit, exponentials.div_(total[:, None]), target, owned


def linear_cross_entropy(
    hidden: torch.Tensor,
    embedding: torch.Tensor,
    vocabulary: int,
    labels: torch.Tensor,
    token_weights: torch.Tensor,
    group: ProcessGroup,
    kernel: LossKernel,
    softcap: float | None = None,
    looked_up: bool = False,
) -> torch.Tensor:
    """Return Σ_n token_weights[n] · cross-entropy of token n, a float32 scalar, equal on all tensor-parallel ranks.

    Args:
        hidden: [N, H]; its gradient is this rank's share, to be summed over the tensor-parallel ranks.
        embedding: [rows, H], this rank's rows of the output embedding. If it has a `main_grad`, as under Megatron's
            DistributedDataParallel, its gradient is added there.
        vocabulary: number of rows that stand for tokens; padding follows.
        labels: [N], token ids counted from this rank's first row.
        token_weights: [N] float32; 0 excludes a token.
        group: the tensor-parallel ranks.
        kernel: block size and kernels.
        softcap: bound on the logits; None: no bound.
        looked_up: whether this stage also embeds by the same table. The table's gradient is then complete only with the
            lookup's, which autograd adds.
    """
    # Decided here, because inside the function torch reports parameters as needing gradients even under no_grad.
    with_gradient = torch.is_grad_enabled() and (hidden.requires_grad or embedding.requires_grad)
    return LinearCrossEntropy.apply(
        hidden, embedding, vocabulary, labels, token_weights, group, kernel, softcap, looked_up, with_gradient
    )
