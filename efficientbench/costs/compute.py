"""What one rank computes and moves in a training step, by kind of work, as pure formulas; no torch.

FLOPs are the model's (cost.py), with what is recomputed. Bytes are what the operations read and write, each of its
inputs and outputs once, as the harness has them: no cache is credited, and neither are fusions that it does not make.
"""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.layout import Layout, padded_vocab_size
from efficientbench.config.schema import RunConfig
from efficientbench.costs import memory as memory_cost
from efficientbench.costs.attention import ATTENTION
from efficientbench.costs.model import BYTES, causal_score_flops, feed_forward_parameters, router_parameters

FLOAT32 = 4


@dataclass(frozen=True)
class Work:
    """Operations of one rank that a device does at once: it computes while it moves."""

    flops: float
    """Of matrix products, or of attention's scores and their product with the values."""
    moved_bytes: float
    """Between the device and its memory."""

    def times(self, factor: float) -> Work:
        """The same work `factor` times."""
        return Work(self.flops * factor, self.moved_bytes * factor)


Works = tuple[Work, ...]
"""Operations that follow one another."""


def micro_batch_work(config: RunConfig, layout: Layout, stage: int) -> dict[str, Works]:
    """Of a rank of a pipeline stage for one micro-batch, forward and backward: kind of work → what it consists of."""
    layers = layout.layers_per_stage
    work = {
        "matmuls": _matmuls(config, layout),
        "attention": (_attention(config, layout),),
        "norms": (_norms(config, layout),),
        "elementwise": (_elementwise(config, layout),),
    }
    work = {kind: tuple(each.times(layers) for each in parts) for kind, parts in work.items()}
    if stage == 0:
        work["embedding"] = (_embedding(config, layout),)
    if stage == layout.pp - 1:
        work["loss"] = _loss(config, layout)
    return work


def optimizer_work(config: RunConfig, layout: Layout, stage: int) -> Work:
    """Of a rank of a pipeline stage once in a step: gradients zeroed, their norm, clipping, AdamW, and weights in the
    compute dtype from float32 masters."""
    common = memory_cost.rank_parameters(config, layout, stage)
    experts = memory_cost.rank_experts(config, layout)
    held = common + experts
    own = float(held)
    if config.parallel.distributed_optimizer:
        replicas = layout.cp * layout.dp
        own = common / replicas + experts / (layout.tp * replicas / (layout.ep * config.parallel.expert_tp))
    # AdamW reads weight, gradient and both moments, and writes all but the gradient.
    floats = 1 + 2 + 7
    dtype_bytes = BYTES[config.training.dtype]
    cast = 0 if dtype_bytes == FLOAT32 else FLOAT32 + dtype_bytes
    return Work(0, held * FLOAT32 + own * (floats * FLOAT32 + cast))


def _forwards(config: RunConfig) -> int:
    return 2 if config.training.recompute == "full" else 1


def _tokens(config: RunConfig, layout: Layout) -> int:
    return config.training.micro_batch_size * config.training.seq_len // layout.cp


def _matmuls(config: RunConfig, layout: Layout) -> Works:
    """Projections, feed-forward and router of one layer: forward, and twice as much backward. Each pass reads weights
    or, inside the product, adds to the float32 sums of their gradients, and moves inputs and outputs."""
    model, tp = config.model, layout.tp
    dtype_bytes = BYTES[config.training.dtype]
    attention = ATTENTION[model.attention.kind]
    computed = model.moe.top_k if model.moe else 1
    per_token = attention.projection_flops(model) + 2 * (
        computed * feed_forward_parameters(model) + router_parameters(model)
    )
    passes = _forwards(config) + 2
    weights = attention.parameters(model) / tp
    if model.moe is None:
        weights += feed_forward_parameters(model) / tp
    else:
        weights += memory_cost.rank_experts(config, layout) / layout.layers_per_stage
    inner = 3 * model.ffn_hidden_size * computed + sum(attention.column_inputs(model))
    elements = (inner + attention.projection_flops(model) / model.hidden_size) / tp + 2 * model.hidden_size
    moved = weights * (passes - 1) * dtype_bytes + weights * 2 * FLOAT32
    moved += passes * _tokens(config, layout) * elements * dtype_bytes
    return (Work(_tokens(config, layout) * per_token / tp * passes, moved),)


def _attention(config: RunConfig, layout: Layout) -> Work:
    """Scores and values of one layer; queries, keys, values, output and their gradients once in each pass."""
    model, training = config.model, config.training
    per_token = causal_score_flops(model, training.seq_len) / layout.tp
    passes = 3 if training.recompute == "none" else 4
    saved = ATTENTION[model.attention.kind].saved(model, layout.tp)
    moved = passes * _tokens(config, layout) * saved * BYTES[training.dtype]
    return Work(_tokens(config, layout) * per_token * passes, moved)


def _residual(config: RunConfig, layout: Layout) -> float:
    """Bytes of a micro-batch's hidden states on one rank."""
    width = config.model.hidden_size / (layout.tp if layout.sp else 1)
    return _tokens(config, layout) * width * BYTES[config.training.dtype]


def _norms(config: RunConfig, layout: Layout) -> Work:
    """Two of a layer. Forward reads and writes the hidden states; backward reads them and a gradient, writes one."""
    return Work(0, 2 * (2 * _forwards(config) + 3) * _residual(config, layout))


def _elementwise(config: RunConfig, layout: Layout) -> Work:
    """SwiGLU, rotation and residual additions of one layer."""
    model, tokens = config.model, _tokens(config, layout)
    dtype_bytes, forwards = BYTES[config.training.dtype], _forwards(config)
    copies = model.moe.top_k if model.moe else 1
    width = copies * model.ffn_hidden_size / layout.tp
    # silu, then its product with up; backward the activation again, two products and silu's gradient. Fused, each way
    # reads what goes in and writes what comes out.
    swiglu = (3 * forwards + 5 if config.kernels.fused else 5 * forwards + 12) * width
    rotated = 0.0
    if model.position.kind == "rope":
        groups = max(model.key_value_heads / layout.tp, 1)
        once = 2 if config.kernels.fused else 3
        rotated = once * (forwards + 1) * (model.heads / layout.tp + groups) * model.rotated_dim
    residual = 2 * 3 * (forwards + 1) * _residual(config, layout)
    return Work(0, tokens * (swiglu + rotated) * dtype_bytes + residual)


def _rows(config: RunConfig, layout: Layout) -> int:
    return padded_vocab_size(config.model.vocab_size, layout.tp) // layout.tp


def _embedding(config: RunConfig, layout: Layout) -> Work:
    """The lookup, and its gradient: a table of zeros that rows are added to, itself added to the float32 sum."""
    dtype_bytes = BYTES[config.training.dtype]
    table = memory_cost.rank_embedding(config, layout) * (2 * dtype_bytes + 2 * FLOAT32)
    return Work(0, table + 4 * _residual(config, layout))


def _loss(config: RunConfig, layout: Layout) -> Works:
    """Output projection and cross-entropy over blocks of tokens: three products, a softmax in place between them, and
    the float32 gradient of the table, which every block adds to, scaled and added to the sums."""
    model, tokens, rows = config.model, _tokens(config, layout), _rows(config, layout)
    dtype_bytes = BYTES[config.training.dtype]
    blocks = -(-tokens // max(config.kernels.loss_block // rows, 1))
    table = memory_cost.rank_embedding(config, layout)
    products = table * blocks * (2 * dtype_bytes + 2 * FLOAT32) + 3 * tokens * rows * dtype_bytes
    # Largest, difference, exponential, sum, quotient, weight; where logits are narrower, wider copies of them too.
    # Fused, logits are read for the largest, for the sum and for the gradient, which is written.
    softmax = 10 * FLOAT32 + (0 if dtype_bytes == FLOAT32 else FLOAT32 + 2 * dtype_bytes)
    if config.kernels.fused:
        softmax = 4 * dtype_bytes
    return (
        Work(3 * 2 * tokens * model.hidden_size * rows, products),
        # The table's gradient: zeros, scaled, added.
        Work(0, tokens * rows * softmax + table * 6 * FLOAT32),
    )
