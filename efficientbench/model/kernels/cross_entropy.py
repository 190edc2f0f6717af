"""Output projection and cross-entropy in one pass over blocks of tokens: the logits of a batch never exist at once.

N = tokens, H = hidden size, V = vocabulary on this tensor-parallel rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

NAME = "linear + cross-entropy over blocks of tokens, gradient in the forward pass"
BLOCK_ELEMENTS = 2**24
"""Logits in one block: enough rows for the matmul's full speed, few enough to bound memory (64 MiB in float32)."""

ROWS_AT_ONCE = 8192
"""Rows of the vocabulary's gradient that are added at once where its dtype is wider than the products'."""


def block_rows(vocabulary: int) -> int:
    """Tokens in one block of logits."""
    return max(BLOCK_ELEMENTS // vocabulary, 1)


class LinearCrossEntropy(torch.autograd.Function):
    """Σ weight_n · (−log softmax(hidden_n Wᵀ)[label_n]); computes its gradients, up to a scale, in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        embedding: torch.Tensor,
        vocabulary: int,
        labels: torch.Tensor,
        token_weights: torch.Tensor,
        group: ProcessGroup,
    ) -> torch.Tensor:
        weight = embedding[:vocabulary]
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        with_gradient = any(ctx.needs_input_grad)
        grad_hidden = torch.empty_like(hidden) if with_gradient else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if with_gradient else None
        for first in range(0, hidden.shape[0], block_rows(vocabulary)):
            block = slice(first, first + block_rows(vocabulary))
            losses, probabilities, target, owned = _softmax(hidden[block] @ weight.t(), labels[block], group)
            loss += losses @ token_weights[block]
            if grad_hidden is None or grad_weight is None:
                continue
            probabilities[torch.arange(len(target), device=target.device), target] -= owned
            grad_logits = probabilities.mul_(token_weights[block, None]).to(hidden.dtype)
            torch.mm(grad_logits, weight, out=grad_hidden[block])
            _add_product(grad_weight, grad_logits, hidden[block])
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.embedding = embedding
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale, embedding = grad_outputs[0], ctx.embedding
        grad_hidden.mul_(scale)
        grad_weight.mul_(scale)
        if hasattr(embedding, "main_grad"):
            # As the linear layers do: no further copy of the vocabulary's gradient, and no rounding of it.
            embedding.main_grad[: grad_weight.shape[0]] += grad_weight
            return grad_hidden, None, None, None, None, None
        padding = embedding.shape[0] - grad_weight.shape[0]
        grad_embedding = torch.nn.functional.pad(grad_weight, (0, 0, 0, padding)).to(embedding.dtype)
        return grad_hidden, grad_embedding, None, None, None, None


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total [V, H] float32 += leftᵀ · right for left [N, V] and right [N, H]."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
        return
    # In pieces, because adding a narrower dtype makes a float32 copy of it first.
    for rows in range(0, total.shape[0], ROWS_AT_ONCE):
        total[rows : rows + ROWS_AT_ONCE] += left[:, rows : rows + ROWS_AT_ONCE].t() @ right


def _softmax(
    logits: torch.Tensor, labels: torch.Tensor, group: ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses [N], probabilities [N, V], each label's column here [N], and 1 where this rank owns the label [N]."""
    parallel = group.size() > 1
    logits = logits.float()
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
) -> torch.Tensor:
    """Σ_n token_weights[n] · cross-entropy of token n, a float32 scalar, equal on all tensor-parallel ranks.

    Args:
        hidden: [N, H]; its gradient is this rank's share, to be summed over the tensor-parallel ranks.
        embedding: [rows, H], this rank's rows of the output embedding. Where it has a `main_grad`, as under megatron's
            DistributedDataParallel, its gradient is added there.
        vocabulary: rows that stand for tokens; padding follows.
        labels: [N], token ids counted from this rank's first row.
        token_weights: [N] float32; 0 leaves a token out.
        group: the tensor-parallel ranks.
    """
    loss: torch.Tensor = LinearCrossEntropy.apply(hidden, embedding, vocabulary, labels, token_weights, group)
    return loss
