"""What one rank of a training run holds in memory at its peak, as pure formulas; no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from efficientbench.config.layout import Layout, padded_vocab_size
from efficientbench.config.schema import RunConfig
from efficientbench.costs.attention import ATTENTION
from efficientbench.costs.model import BYTES, POSITION, feed_forward_parameters, router_parameters


@dataclass(frozen=True)
class RankMemory:
    """Peak memory of one rank in training, by part, in bytes."""

    weights: int
    gradients: int
    """float32, the sums over micro-batches."""
    master_weights: int
    """float32 copies that the optimizer updates; none where the weights themselves are float32."""
    adam_moments: int
    activations: int
    """Kept from forward to backward, for all micro-batches in flight."""
    workspace: int
    """The most that the loss, or a layer's backward pass, needs for a moment."""
    runtime: int
    """Interpreter, libraries, communication buffers, and what the allocator holds beyond tensors."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def memory_by_stage(config: RunConfig, layout: Layout, runtime_bytes: int) -> tuple[RankMemory, ...]:
    """Peak memory of a rank of each pipeline stage; the ranks of one stage are alike.

    `runtime_bytes` is the device type's fixed part.
    """
    return tuple(_rank_memory(config, layout, stage, runtime_bytes) for stage in range(layout.pp))


def _rank_memory(config: RunConfig, layout: Layout, stage: int, runtime_bytes: int) -> RankMemory:
    """State as megatron-core's DistributedDataParallel and (distributed) optimizer hold it: weights in the compute
    dtype, one float32 gradient buffer, and per data-parallel rank a share of float32 masters and Adam's moments.
    Experts are shared out over ep ranks, their optimizer states over the ranks that hold the same ones."""
    common, experts = rank_parameters(config, layout, stage), rank_experts(config, layout)
    replicas = layout.cp * layout.dp
    same_experts = layout.tp * replicas // (layout.ep * config.parallel.expert_tp)
    count = sharded = common + experts
    dtype_bytes = BYTES[config.training.dtype]
    if config.parallel.distributed_optimizer:
        sharded = -(-common // replicas) + -(-experts // same_experts)
    return RankMemory(
        weights=count * dtype_bytes,
        gradients=count * 4,
        master_weights=0 if dtype_bytes == 4 else sharded * 4,
        adam_moments=sharded * 8,
        activations=_activation_bytes(config, layout, stage),
        workspace=_workspace_bytes(config, layout, stage),
        runtime=runtime_bytes,
    )


def rank_parameters(config: RunConfig, layout: Layout, stage: int) -> int:
    """Parameters on one rank besides experts; with several stages, the tied embedding is on the first and on the
    last."""
    model, tp = config.model, layout.tp
    attention = ATTENTION[model.attention.kind]
    whole = attention.replicated_parameters(model)
    split = attention.parameters(model) - whole
    if model.moe is None:
        split += feed_forward_parameters(model)
    count = layout.layers_per_stage * (split // tp + whole + router_parameters(model) + 2 * model.hidden_size)
    count += POSITION[model.position.kind].rank_parameters(model, tp, stage == 0)
    if stage in (0, layout.pp - 1):
        count += rank_embedding(config, layout)
    if stage == layout.pp - 1:
        count += model.hidden_size
    return count


def rank_experts(config: RunConfig, layout: Layout) -> int:
    """Parameters of the experts on one rank; none in a dense model."""
    model = config.model
    if model.moe is None:
        return 0
    each = feed_forward_parameters(model) // config.parallel.expert_tp
    return layout.layers_per_stage * model.moe.experts // layout.ep * each


def rank_embedding(config: RunConfig, layout: Layout) -> int:
    return padded_vocab_size(config.model.vocab_size, layout.tp) // layout.tp * config.model.hidden_size


def _activation_bytes(config: RunConfig, layout: Layout, stage: int) -> int:
    """Per layer what `_layer_elements` says, or with full recomputation its input alone. 1F1B holds as many
    micro-batches as there are stages from this one on; interleaved, each rank holds some more, of its virtual
    stages."""
    model, training, tp = config.model, config.training, layout.tp
    residual = model.hidden_size // tp if layout.sp else model.hidden_size
    layer = residual if training.recompute == "full" else _layer_elements(config, layout)
    in_flight = layout.pp - stage
    if layout.vpp > 1:
        in_flight = 2 * (layout.pp - stage) - 1 + (layout.vpp - 1) * layout.pp
    in_flight = min(in_flight, layout.micro_batches * layout.vpp)
    per_token = in_flight * (layout.layers_per_stage // layout.vpp) * layer
    if stage == layout.pp - 1:
        per_token += 2 * residual
    return _rank_tokens(config, layout) * per_token * BYTES[training.dtype]


def _layer_elements(config: RunConfig, layout: Layout) -> int:
    """Elements kept per token of one layer: both norms' inputs and outputs, attention's own, the feed-forward layer's
    gate, up and product, of experts their input and output too. Context-parallel ranks keep the keys and values of the
    whole sequence, or with selective recomputation gather them again."""
    model, tp = config.model, layout.tp
    residual = model.hidden_size // tp if layout.sp else model.hidden_size
    attention = ATTENTION[model.attention.kind]
    elements = 4 * residual + attention.saved(model, tp) + _feed_forward_elements(config)
    if config.training.recompute == "selective":
        return elements - attention.recomputed(model, tp)
    return elements + (layout.cp - 1) * attention.gathered(model, tp)


def _rank_tokens(config: RunConfig, layout: Layout) -> int:
    """Tokens of a micro-batch on one rank; sequence parallelism left out of account."""
    return config.training.micro_batch_size * config.training.seq_len // layout.cp


def _feed_forward_elements(config: RunConfig) -> int:
    """Gate, up and product, per token. Experts have top-k copies of it with an input and an output each, and compute
    those of one rank's tokens on average: where ranks of tp do not split each expert, every one has its own tokens."""
    model, parallel = config.model, config.parallel
    inner = 3 * model.ffn_hidden_size // parallel.tp
    if model.moe is None:
        return inner
    return model.moe.top_k * (inner + 2 * model.hidden_size * parallel.expert_tp // parallel.tp)


def _workspace_bytes(config: RunConfig, layout: Layout, stage: int) -> int:
    """Passing tensors: a layer's backward pass (its recomputed activations, gradients of gate, up, product, residual;
    for experts also of what is dispatched and returned) beside the output embedding's gradient that waits for the
    lookup's, or the loss."""
    model, training = config.model, config.training
    dtype_bytes = BYTES[training.dtype]
    tokens = _rank_tokens(config, layout)
    layer = tokens * (_feed_forward_elements(config) + 2 * model.hidden_size) * dtype_bytes
    if training.recompute == "full":
        layer += tokens * _layer_elements(config, layout) * dtype_bytes
    embedding = rank_embedding(config, layout) * dtype_bytes
    first, last = stage == 0, stage == layout.pp - 1
    waiting = embedding if last else 0
    lookup = waiting + embedding if first else 0
    return max(waiting + layer, lookup, loss_workspace_bytes(config, layout) if last else 0)


def loss_workspace_bytes(config: RunConfig, layout: Layout) -> int:
    """The loss over blocks of tokens: logits of one block (compute dtype, float32 unless fused, and their gradient),
    the output embedding's float32 gradient, one block's contribution to it, and the gradient of the hidden states."""
    training = config.training
    dtype_bytes = BYTES[training.dtype]
    copies = 4 if dtype_bytes == 4 else 4 + 2 * dtype_bytes
    if config.kernels.fused:
        copies = 2 * dtype_bytes
    embedding = rank_embedding(config, layout)
    tokens = _rank_tokens(config, layout)
    rows = padded_vocab_size(config.model.vocab_size, layout.tp) // layout.tp
    block = min(max(config.kernels.loss_block // rows, 1), tokens) * rows
    contribution = 0 if dtype_bytes == 4 else embedding * dtype_bytes
    return block * copies + embedding * 4 + contribution + tokens * config.model.hidden_size * dtype_bytes
