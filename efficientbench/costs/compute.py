"""Formulas for the FLOPs and the moved bytes of one rank in a training step, by kind of work, without torch.

FLOPs are those of model.py, with recomputation. Bytes count each operation's inputs and outputs once, for the
operations that this project runs: no cache is credited, and no fusion that it does not make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.architecture.model import ModelConfig
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.config.training import Recompute
from efficientbench.costs.matrices import muon_flops
from efficientbench.costs.memory import (
    layer_experts,
    rank_embedding,
    rank_experts,
    rank_parameters,
    rank_tokens,
    vocabulary_rows,
)
from efficientbench.costs.model import FLOAT32_BYTES, flops_per_token, layer_matmul_flops


@dataclass(frozen=True)
class AttentionWork:
    """The work of an attention kernel beyond its formula."""

    scores_again: bool = True
    """Whether the backward pass computes the scores from queries and keys again, as kernels do that never keep them."""
    pads_values: bool = False
    """Whether values are padded to the width of keys."""
    again: int = 0
    """FLOPs per token of scores that a layer's forward pass computes a second time."""
    again_in_backward: int = 0
    """FLOPs per token of products that a layer's backward pass computes once more than with `scores_again`."""


def hardware_flops_per_token(
    model: ModelConfig, seq_len: int, recompute: Recompute, work_of: Callable[[ModelConfig], AttentionWork]
) -> int:
    """Count the FLOPs per token that devices compute in training: the model's, and those of recomputation and kernels.

    Of kernels: scores computed again, padding, and masked keys of selected blocks; not what a kernel computes at the
    edge of a causal mask to fill its tiles.

    `work_of`: returns the work of the attention kernel of a view. Raises UndeclaredError: the attention's declaration
    lacks a formula.
    """
    forwards = 1 if recompute == "none" else 2
    total = flops_per_token(model, seq_len, recompute).training_hardware
    for view, count in model.counted_views:
        costs, work = view.attention_variant.costs, work_of(view)
        needed = costs.products(view, seq_len)
        scores, values = (costs.computed_products or costs.products)(view, seq_len)
        if work.pads_values:
            values = scores
        forward = scores + values - sum(needed)
        backward = 2 * forward + (scores if work.scores_again else 0)
        total += count * (forwards * (forward + work.again) + backward + work.again_in_backward)
    return total


@dataclass(frozen=True)
class Work:
    """Operations of one rank in which a device computes and moves bytes at the same time."""

    flops: float
    """FLOPs in matrix products, or in attention's scores and their product with the values."""
    moved_bytes: float
    """Bytes between the device and its memory."""

    def times(self, factor: float) -> Work:
        """Return this work `factor` times."""
        return Work(self.flops * factor, self.moved_bytes * factor)


Works = tuple[Work, ...]
"""Operations that run one after another."""


def micro_batch_work(config: RunConfig, layout: Layout, stage: int) -> dict[str, Works]:
    """Return the work of a rank of a pipeline stage for one micro-batch, forward and backward, by kind."""
    work: dict[str, Works] = {}
    for each, count in config.stage_views:
        layer = {
            "matmuls": _matmuls(each, layout),
            "attention": (_attention(each, layout),),
            "norms": (_norms(each, layout),),
            "elementwise": (_elementwise(each, layout),),
        }
        for kind, parts in layer.items():
            work[kind] = work.get(kind, ()) + tuple(part.times(count) for part in parts)
    if stage == 0:
        work["embedding"] = (_embedding(config, layout),)
    if stage == layout.pp - 1:
        work["loss"] = _loss(config, layout)
    return work


def optimizer_work(config: RunConfig, layout: Layout, stage: int) -> Works:
    """Return the optimizer's work on a rank of a pipeline stage, once in a step.

    The rank zeroes gradients, takes their norm (of several ranks before and after the reduction), runs AdamW, and casts
    float32 masters to the compute dtype. AdamW clips as it reads, and writes the clipped gradients back. Muon moves
    about as many bytes, and its matrix products come on top.
    """
    common = rank_parameters(config, layout, stage)
    experts = rank_experts(config, layout)
    count = common + experts
    own = float(count)
    if config.parallel.distributed_optimizer:
        replicas = layout.cp * layout.dp
        own = common / replicas + experts / (layout.tp * replicas / (layout.ep * config.parallel.expert_tp))
    floats = 8 + (1 if layout.world_size > 1 else 0)
    dtype_bytes = DTYPE_BYTES[config.training.dtype]
    cast = 0 if dtype_bytes == FLOAT32_BYTES else FLOAT32_BYTES + dtype_bytes
    updates = Work(0, 2 * count * FLOAT32_BYTES + own * (floats * FLOAT32_BYTES + cast))
    return (updates, Work(muon_flops(config, layout), 0)) if config.training.optimizer == "muon" else (updates,)


def _forwards(config: RunConfig) -> int:
    return 2 if config.training.recompute == "full" else 1


def _matmuls(config: RunConfig, layout: Layout) -> Works:
    """Return the work of one layer's projections, feed-forward and router: forward, and twice as much backward.

    Each pass moves inputs and outputs, and reads weights or adds to the float32 sums of their gradients.
    """
    model, tp = config.model, layout.tp
    dtype_bytes = DTYPE_BYTES[config.training.dtype]
    attention = model.attention_variant.costs
    computed = model.computing_networks
    passes = _forwards(config) + 2
    weights = attention.parameters(model) / tp + model.unrouted_networks * model.feed_forward_parameters / tp
    weights += layer_experts(config, layout)
    inner = model.feed_forward_matrices * model.ffn_hidden_size * computed + sum(attention.column_inputs(model))
    elements = (inner + attention.projection_flops(model) / model.hidden_size) / tp + 2 * model.hidden_size
    moved = weights * (passes - 1) * dtype_bytes + weights * 2 * FLOAT32_BYTES
    moved += passes * rank_tokens(config, layout) * elements * dtype_bytes
    return (Work(rank_tokens(config, layout) * layer_matmul_flops(model) / tp * passes, moved),)


def _attention(config: RunConfig, layout: Layout) -> Work:
    """Return the work of one layer's scores; each pass moves queries, keys, values, output or their gradients once."""
    model, training = config.model, config.training
    costs = model.attention_variant.costs
    per_token = costs.causal_score_flops(model, training.seq_len) / layout.tp
    passes = 3 if training.recompute == "none" else 4
    moved = passes * rank_tokens(config, layout) * costs.saved(model, layout.tp) * DTYPE_BYTES[training.dtype]
    return Work(rank_tokens(config, layout) * per_token * passes, moved)


def _residual(config: RunConfig, layout: Layout) -> float:
    """Return the bytes of a micro-batch's hidden states on one rank."""
    width = config.model.hidden_size / (layout.tp if layout.sp else 1)
    return rank_tokens(config, layout) * width * DTYPE_BYTES[config.training.dtype]


def _norms(config: RunConfig, layout: Layout) -> Work:
    """Return the work of a layer's two norms, and of the norms of its queries and keys.

    The forward pass reads and writes a tensor; the backward pass reads it and a gradient, and writes a gradient.
    """
    model, normalized = config.model, 2 * _residual(config, layout)
    if model.qk_norm:
        heads = model.heads / layout.tp + max(model.key_value_heads / layout.tp, 1)
        normalized += rank_tokens(config, layout) * heads * model.head_dim * DTYPE_BYTES[config.training.dtype]
    return Work(0, (2 * _forwards(config) + 3) * normalized)


def _elementwise(config: RunConfig, layout: Layout) -> Work:
    """Return the work of one layer's activation, rotation and residual additions."""
    model, tokens = config.model, rank_tokens(config, layout)
    dtype_bytes, forwards = DTYPE_BYTES[config.training.dtype], _forwards(config)
    width = model.computing_networks * model.ffn_hidden_size / layout.tp
    # SwiGLU forward: silu, then its product with up; backward: the activation again, two products and silu's gradient.
    # ReLU² forward: the maximum and its square; backward: the maximum and two products. Fused kernels only read inputs
    # and write outputs.
    if model.activation == "swiglu":
        activation = (3 * forwards + 5 if config.kernels.fused else 5 * forwards + 12) * width
    else:
        activation = (2 * forwards + 3 if config.kernels.fused else 4 * forwards + 7) * width
    rotated = 0.0
    if model.position_variant.place == "queries and keys":
        groups = max(model.key_value_heads / layout.tp, 1)
        once = 2 if config.kernels.fused else 3
        rotated = once * (forwards + 1) * (model.heads / layout.tp + groups) * model.rotated_dim
    additions = 2 * 3 * (forwards + 1)
    if config.kernels.fused:
        # The norm between them does not read the first sum again, and adds its two gradients itself.
        additions -= forwards + 2
    residual = additions * _residual(config, layout)
    return Work(0, tokens * (activation + rotated) * dtype_bytes + residual)


def _embedding(config: RunConfig, layout: Layout) -> Work:
    """Return the work of the lookup, with a norm behind it, and of the table's gradient.

    The rows' gradients are added to a table of zeros, and that table to the float32 sum.
    """
    dtype_bytes = DTYPE_BYTES[config.training.dtype]
    table = rank_embedding(config, layout) * (2 * dtype_bytes + 2 * FLOAT32_BYTES)
    # The lookup writes the rows and reads their gradient; a factor reads and writes both once more.
    passes = 4 if config.model.embedding_multiplier == 1 else 8
    passes += 5 if config.model.embedding_norm else 0
    return Work(0, table + passes * _residual(config, layout))


def _loss(config: RunConfig, layout: Layout) -> Works:
    """Return the work of the output projection and cross-entropy over blocks of tokens.

    There are three products and a softmax in place between them. Every block adds to the table's float32 gradient: the
    sum of all micro-batches, or with fp16's loss scaler a gradient that is scaled and added to the sums once.
    """
    model, tokens, rows = config.model, rank_tokens(config, layout), vocabulary_rows(config, layout)
    dtype_bytes = DTYPE_BYTES[config.training.dtype]
    blocks = -(-tokens // max(config.kernels.loss_block // rows, 1))
    table = rank_embedding(config, layout)
    products = table * blocks * (2 * dtype_bytes + 2 * FLOAT32_BYTES) + 3 * tokens * rows * dtype_bytes
    # Largest, difference, exponential, sum, quotient, weight; logits narrower than float32 are copied to it. Fused
    # kernels read the logits for the largest, the sum and the gradient, and write the gradient.
    softmax = 10 * FLOAT32_BYTES + (0 if dtype_bytes == FLOAT32_BYTES else FLOAT32_BYTES + 2 * dtype_bytes)
    # A bound: quotient, tanh, product, and the slope, three passes to compute it and one to multiply by it.
    softmax += 15 * FLOAT32_BYTES if model.logit_softcap else 0
    if config.kernels.fused:
        softmax = 4 * dtype_bytes
    return (
        Work(3 * 2 * tokens * model.hidden_size * rows, products),
        # The table's gradient with a scaler: zeros, scaled, added.
        Work(0, tokens * rows * softmax + table * (6 if config.training.dtype == "fp16" else 0) * FLOAT32_BYTES),
    )
