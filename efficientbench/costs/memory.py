"""Formulas for the peak memory of one rank of a training run, without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.config.layout import Layout, padded_vocab_size
from efficientbench.config.schema import RunConfig
from efficientbench.costs.matrices import muon_bytes, rank_matrices
from efficientbench.costs.model import FLOAT32_BYTES


@dataclass(frozen=True)
class RankMemory:
    """Peak memory of one rank in training, by part, in bytes."""

    weights: int
    """Weights in the compute dtype."""
    gradients: int
    """float32 sums of the gradients over micro-batches."""
    master_weights: int
    """float32 copies of the weights that the optimizer updates; 0 where the weights themselves are float32."""
    adam_moments: int
    """Both float32 moments of the weights that AdamW updates."""
    muon_momentum: int
    """Muon's float32 momentum of the layers' matrices; 0 where AdamW updates them."""
    activations: int
    """Tensors kept from forward to backward, for all micro-batches in flight."""
    workspace: int
    """Temporary tensors of the loss, a layer's backward pass, the lookup's gradient or Muon, whichever takes most."""
    runtime: int
    """Interpreter, libraries, communication buffers, and the allocator's memory beyond tensors."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def memory_by_stage(config: RunConfig, layout: Layout, runtime_bytes: int) -> tuple[RankMemory, ...]:
    """Estimate the peak memory of a rank of each pipeline stage; the ranks of one stage are alike.

    `runtime_bytes` is the device type's fixed part.
    """
    return tuple(_rank_memory(config, layout, stage, runtime_bytes) for stage in range(layout.pp))


def _rank_memory(config: RunConfig, layout: Layout, stage: int, runtime_bytes: int) -> RankMemory:
    """Estimate one rank's memory, with its state as megatron-core's DistributedDataParallel and optimizer keep it.

    The state is weights in the compute dtype, one float32 gradient buffer, and float32 masters with Adam's moments,
    which a distributed optimizer shards over the data-parallel ranks. The ep ranks share the experts; the ranks with
    the same experts share their optimizer states.
    """
    common, experts = rank_parameters(config, layout, stage), rank_experts(config, layout)
    replicas = layout.cp * layout.dp
    same_experts = layout.tp * replicas // (layout.ep * config.parallel.expert_tp)
    count = sharded = common + experts
    dtype_bytes = DTYPE_BYTES[config.training.dtype]
    if config.parallel.distributed_optimizer:
        sharded = -(-common // replicas) + -(-experts // same_experts)
    by_muon = rank_matrices(config, layout) if config.training.optimizer == "muon" else 0
    activations = _activation_bytes(config, layout, stage)
    workspace = _workspace_bytes(config, layout, stage)
    if by_muon:
        # Muon's update needs its tensors only after the activations are freed.
        workspace = max(workspace, muon_bytes(config, layout) - activations)
    return RankMemory(
        weights=count * dtype_bytes,
        gradients=count * FLOAT32_BYTES,
        master_weights=0 if dtype_bytes == FLOAT32_BYTES else sharded * FLOAT32_BYTES,
        adam_moments=(sharded - by_muon) * 2 * FLOAT32_BYTES,
        muon_momentum=by_muon * FLOAT32_BYTES,
        activations=activations,
        workspace=workspace,
        runtime=runtime_bytes,
    )


def rank_parameters(config: RunConfig, layout: Layout, stage: int) -> int:
    """Count the parameters of one rank without its experts.

    With several stages, the first and the last both hold a tied embedding.
    """
    model, tp = config.model, layout.tp
    first, last = stage == 0, stage == layout.pp - 1
    own = model.own_view
    count = own.position_variant.costs.rank_parameters(own, tp, first)
    count += model.vocabulary_tables(first, last) * rank_embedding(config, layout)
    count += model.outer_norm_parameters(first, last)
    for view, layers in model.counted_views:
        attention = view.attention_variant.costs
        whole = attention.replicated_parameters(view) if tp > 1 else 0
        split = attention.parameters(view) - whole + view.unrouted_networks * view.feed_forward_parameters
        layer = split // tp + whole + view.router_parameters + view.layer_norm_parameters
        count += layers // layout.pp * layer
    return count


def rank_experts(config: RunConfig, layout: Layout) -> int:
    """Count the parameters of one rank's experts; 0 in a dense model."""
    return sum(count * layer_experts(each, layout) for each, count in config.stage_views)


def layer_experts(config: RunConfig, layout: Layout) -> int:
    """Count the parameters of one rank's experts in a layer; 0 in a dense model."""
    model = config.model
    if model.moe is None:
        return 0
    return model.moe.experts // layout.ep * (model.feed_forward_parameters // config.parallel.expert_tp)


def rank_embedding(config: RunConfig, layout: Layout) -> int:
    """Count the parameters of one rank's part of the embedding, or of an output projection's own table."""
    return vocabulary_rows(config, layout) * config.model.hidden_size


def vocabulary_rows(config: RunConfig, layout: Layout) -> int:
    """Return the rows of the padded embedding that one tensor-parallel rank holds."""
    return padded_vocab_size(config.model.vocab_size, layout.tp) // layout.tp


def rank_tokens(config: RunConfig, layout: Layout) -> int:
    """Return the tokens of a micro-batch on one rank, before sequence parallelism splits them."""
    return config.training.micro_batch_size * config.training.seq_len // layout.cp


def _activation_bytes(config: RunConfig, layout: Layout, stage: int) -> int:
    """Estimate the activations of all layers and micro-batches in flight.

    A layer keeps `_layer_elements`, or its input alone with full recomputation; a norm of the embedding keeps its
    input. In 1F1B as many micro-batches are in flight as there are stages from this one on; interleaved 1F1B has more,
    over a rank's virtual stages.
    """
    model, training, tp = config.model, config.training, layout.tp
    residual = model.hidden_size // tp if layout.sp else model.hidden_size
    in_flight = layout.pp - stage
    if layout.vpp > 1:
        # megatron's warm-up of interleaved 1F1B, and the micro-batch that follows it; each has one virtual stage.
        in_flight = 2 * (layout.pp - stage) - 1 + (layout.vpp - 1) * layout.pp
    in_flight = min(in_flight, layout.micro_batches * layout.vpp)
    if training.recompute == "full":
        kept = model.layers // layout.pp * residual
    else:
        kept = sum(count * _layer_elements(each, layout) for each, count in config.stage_views)
    # Every virtual stage has equally many layers of each kind.
    per_token = in_flight * (kept // layout.vpp)
    if stage == layout.pp - 1:
        per_token += 2 * residual
    if stage == 0 and model.embedding_norm:
        per_token += -(-in_flight // layout.vpp) * residual
    return rank_tokens(config, layout) * per_token * DTYPE_BYTES[training.dtype]


def _layer_elements(config: RunConfig, layout: Layout) -> int:
    """Count the elements per token that one layer keeps.

    They are inputs and outputs of both norms, the elements of attention with its norms, and the feed-forward layer's
    inner elements; experts also keep input and output. Context-parallel ranks keep the keys and values of the complete
    sequence; with selective recomputation they gather them again.
    """
    model, tp = config.model, layout.tp
    residual = model.hidden_size // tp if layout.sp else model.hidden_size
    attention = model.attention_variant.costs
    elements = 4 * residual + attention.saved(model, tp) + _feed_forward_elements(config)
    elements += _head_norm_elements(config)
    if config.training.recompute == "selective":
        return elements - attention.recomputed(model, tp)
    return elements + ((layout.cp - 1) * attention.gathered(model, tp) if layout.cp > 1 else 0)


def _head_norm_elements(config: RunConfig) -> int:
    """Count the elements per token that one layer keeps because queries and keys are normalized.

    A norm keeps its input. Before the rotation keys are a part of the projection's output, which is kept anyway, and
    queries are copied out of it, unless one group has all heads or each head is a group. Selective recomputation keeps
    normalized keys too; what is normalized after the rotation, it computes again.
    """
    model, tp, selective = config.model, config.parallel.tp, config.training.recompute == "selective"
    if not model.qk_norm:
        return 0
    heads, groups = model.heads // tp, max(model.key_value_heads // tp, 1)
    if not model.norm_weights:
        return 0 if selective else (heads + groups) * model.head_dim
    copied = 0 if groups in (1, heads) else heads
    return (copied + (groups if selective else 0)) * model.head_dim


def _feed_forward_elements(config: RunConfig) -> int:
    """Count the inner elements of the feed-forward layer per token: gate, up and product, or up and its square.

    Experts have top-k copies of them, each with an input and an output. Where tp ranks do not split each expert, every
    tp rank has its own tokens. Shared experts are like the layer of a dense model.
    """
    model, parallel = config.model, config.parallel
    inner = model.feed_forward_matrices * model.ffn_hidden_size // parallel.tp
    routed = 0
    if model.moe is not None:
        routed = model.moe.top_k * (inner + 2 * model.hidden_size * parallel.expert_tp // parallel.tp)
    return routed + model.unrouted_networks * inner


def _workspace_bytes(config: RunConfig, layout: Layout, stage: int) -> int:
    """Estimate the temporary tensors: the most that the loss, a layer's backward pass or the lookup's gradient needs.

    A backward pass needs its recomputed activations and the gradients of the feed-forward layer's inner elements and
    of the residual, for experts also of the tokens sent and returned. Meanwhile a tied embedding's gradient from the
    output waits for its gradient from the lookup.
    """
    model, training = config.model, config.training
    dtype_bytes = DTYPE_BYTES[training.dtype]
    tokens = rank_tokens(config, layout)

    def backward(each: RunConfig) -> int:
        again = _layer_elements(each, layout) if training.recompute == "full" else 0
        return tokens * (_feed_forward_elements(each) + 2 * model.hidden_size + again) * dtype_bytes

    layer = max(backward(each) for each, _ in config.stage_views)
    embedding = rank_embedding(config, layout) * dtype_bytes
    first, last = stage == 0, stage == layout.pp - 1
    waiting = embedding if last and model.tied else 0
    lookup = waiting + embedding if first else 0
    return max(waiting + layer, lookup, _loss_workspace_bytes(config, layout) if last else 0)


def _loss_workspace_bytes(config: RunConfig, layout: Layout) -> int:
    """Estimate the temporary tensors of the loss, which is computed in blocks of tokens.

    They are one block's logits (compute dtype, float32 unless fused, and their gradient; the slope of a bound on them
    unless fused), one block's contribution to the output embedding's gradient, and the gradient of the hidden states;
    with fp16's loss scaler also the embedding's float32 gradient, which waits for the scale.
    """
    training = config.training
    dtype_bytes = DTYPE_BYTES[training.dtype]
    copies = FLOAT32_BYTES if dtype_bytes == FLOAT32_BYTES else FLOAT32_BYTES + 2 * dtype_bytes
    copies += FLOAT32_BYTES if config.model.logit_softcap else 0
    if config.kernels.fused:
        copies = 2 * dtype_bytes
    embedding = rank_embedding(config, layout)
    tokens = rank_tokens(config, layout)
    rows = vocabulary_rows(config, layout)
    block = min(max(config.kernels.loss_block // rows, 1), tokens) * rows
    contribution = 0 if dtype_bytes == FLOAT32_BYTES else embedding * dtype_bytes
    waiting = embedding * FLOAT32_BYTES if training.dtype == "fp16" else 0
    return block * copies + waiting + contribution + tokens * config.model.hidden_size * dtype_bytes
