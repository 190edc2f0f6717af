"""What a model costs: parameters, FLOPs, cache and memory, as pure formulas; no torch.

H = hidden size, F = feed-forward width, D = head dimension, V = vocabulary, S = sequence, t = tensor-parallel ranks.
A new attention or positional encoding adds one entry to ATTENTION or POSITION below, found by its `kind`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from efficientbench import nsa_cost
from efficientbench.config.layout import Layout, padded_vocab_size
from efficientbench.config.schema import LearnableAbsoluteConfig, ModelConfig, Recompute, RelativeConfig, RunConfig

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class AttentionCost:
    """One attention layer's formulas, projections included. Counts are of elements, not bytes."""

    parameters: Callable[[ModelConfig], int]
    replicated_parameters: Callable[[ModelConfig], int]
    """Of these, what every tensor-parallel rank holds whole."""
    projection_flops: Callable[[ModelConfig], int]
    """Forward FLOPs per token in the projections."""
    score_flops: Callable[[ModelConfig, int], int]
    """Forward FLOPs per token in scores and their product with the values, over keys of the full square."""
    cached: Callable[[ModelConfig], int]
    """Elements that decoding keeps per token."""
    saved: Callable[[ModelConfig, int], int]
    """(model, t) → elements per token that one rank keeps from forward to backward, the layer's input left out."""
    recomputed: Callable[[ModelConfig, int], int]
    """(model, t) → of these, what selective recomputation does not keep."""
    gathered: Callable[[ModelConfig, int], int]
    """(model, t) → of these, keys and values: context-parallel ranks keep those of the whole sequence."""
    causal_score_flops: Callable[[ModelConfig, int], int] | None = None
    """The same over the keys that a query sees; None: half of the full square."""
    keys_read_per_query: Callable[[ModelConfig, int], float] | None = None
    """Mean number of keys that a query reads in a sequence of so many tokens; None: all in its past and itself."""


@dataclass(frozen=True)
class PositionCost:
    """A positional encoding's formulas."""

    parameters: Callable[[ModelConfig], int]
    rank_parameters: Callable[[ModelConfig, int, bool], int]
    """(model, t, whether the stage is the first) → parameters on one rank."""


def _gqa_qkv(model: ModelConfig) -> int:
    return (model.heads + 2 * model.attention.query_groups) * model.head_dim


def _gqa_parameters(model: ModelConfig) -> int:
    bias = _gqa_qkv(model) if model.attention.qkv_bias else 0
    return (_gqa_qkv(model) + model.heads * model.head_dim) * model.hidden_size + bias


def _gqa_saved(model: ModelConfig, tp: int) -> int:
    """QKV (the values are a view of it), rotated queries and keys, and the output. Without rotation a little less: the
    keys are a view too."""
    groups = max(model.attention.query_groups // tp, 1)
    heads = model.heads // tp
    return ((heads + 2 * groups) + (heads + groups) + heads) * model.head_dim


ATTENTION = {
    "gqa": AttentionCost(
        parameters=_gqa_parameters,
        replicated_parameters=lambda model: 0,
        projection_flops=lambda model: 2 * model.hidden_size * (_gqa_qkv(model) + model.heads * model.head_dim),
        score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim * seq_len,
        cached=lambda model: 2 * model.attention.query_groups * model.head_dim,
        saved=_gqa_saved,
        recomputed=lambda model, tp: max(model.attention.query_groups // tp, 1) * model.head_dim,
        gathered=lambda model, tp: 2 * max(model.attention.query_groups // tp, 1) * model.head_dim,
    ),
    "nsa": AttentionCost(
        parameters=nsa_cost.parameters,
        replicated_parameters=nsa_cost.compression_parameters,
        projection_flops=nsa_cost.projection_flops,
        score_flops=nsa_cost.score_flops_full_square,
        cached=nsa_cost.cached,
        saved=nsa_cost.saved,
        recomputed=nsa_cost.recomputed,
        gathered=lambda model, tp: 0,
        causal_score_flops=nsa_cost.score_flops,
        keys_read_per_query=nsa_cost.keys_read_per_query,
    ),
}


WITHOUT_PARAMETERS = PositionCost(parameters=lambda model: 0, rank_parameters=lambda model, tp, first: 0)


def _learnable_absolute_parameters(model: ModelConfig) -> int:
    assert isinstance(model.position, LearnableAbsoluteConfig)
    return model.position.max_seq_len * model.hidden_size


def _relative_parameters(model: ModelConfig) -> int:
    assert isinstance(model.position, RelativeConfig)
    return model.position.buckets * model.heads


POSITION = {
    "rope": WITHOUT_PARAMETERS,
    "absolute": WITHOUT_PARAMETERS,
    "learnable_absolute": PositionCost(
        parameters=_learnable_absolute_parameters,
        rank_parameters=lambda model, tp, first: _learnable_absolute_parameters(model) if first else 0,
    ),
    "relative": PositionCost(
        parameters=_relative_parameters,
        rank_parameters=lambda model, tp, first: _relative_parameters(model) // tp,
    ),
    "alibi": WITHOUT_PARAMETERS,
    "none": WITHOUT_PARAMETERS,
}


@dataclass(frozen=True)
class Parameters:
    """Parameters of the whole model, vocabulary unpadded, by part. Input and output embedding are one."""

    embedding: int
    position: int
    attention: int
    feed_forward: int
    norms: int
    idle: int = 0
    """Of `feed_forward`: those of the experts that a token does not go to."""

    @property
    def total(self) -> int:
        return self.embedding + self.position + self.attention + self.feed_forward + self.norms

    @property
    def active(self) -> int:
        """Parameters that compute for each token; all of them in a dense model."""
        return self.total - self.idle


def parameters(model: ModelConfig) -> Parameters:
    """Parameters by part; equal to `transformers.Qwen2ForCausalLM`'s with the same shapes."""
    moe = model.moe
    feed_forward = _router_parameters(model) + _feed_forward_copies(model) * _feed_forward_parameters(model)
    idle = (moe.experts - moe.top_k) * _feed_forward_parameters(model) if moe else 0
    return Parameters(
        embedding=model.vocab_size * model.hidden_size,
        position=POSITION[model.position.kind].parameters(model),
        attention=model.layers * ATTENTION[model.attention.kind].parameters(model),
        feed_forward=model.layers * feed_forward,
        norms=(2 * model.layers + 1) * model.hidden_size,
        idle=model.layers * idle,
    )


def _feed_forward_parameters(model: ModelConfig) -> int:
    """Of one dense layer or one expert."""
    return 3 * model.hidden_size * model.ffn_hidden_size


def _feed_forward_copies(model: ModelConfig) -> int:
    """Dense layers or experts in one layer's place."""
    return model.moe.experts if model.moe else 1


def _router_parameters(model: ModelConfig) -> int:
    return model.hidden_size * model.moe.experts if model.moe else 0


@dataclass(frozen=True)
class Flops:
    """FLOPs per token. A multiply-add is two; matmuls only, logits included, the embedding's lookup not."""

    forward: int
    """Causal attention counted halved: the work that has to be done (Megatron's convention)."""
    recomputed: int
    """Of `forward`, what the backward pass computes again."""
    forward_full_square: int
    """Attention over the full square, as PaLM (arXiv 2204.02311, appendix B), nanochat and torchtitan count."""

    @property
    def training(self) -> int:
        """Forward, and twice as much backward; no recomputation."""
        return 3 * self.forward

    @property
    def training_full_square(self) -> int:
        return 3 * self.forward_full_square

    @property
    def training_hardware(self) -> int:
        """What the device computes: `training` and what is recomputed."""
        return self.training + self.recomputed


def flops_per_token(model: ModelConfig, seq_len: int, recompute: Recompute = "none") -> Flops:
    """FLOPs per token at sequences of `seq_len` tokens, averaged over their positions."""
    attention = ATTENTION[model.attention.kind]
    computed = model.moe.top_k if model.moe else 1
    feed_forward = 2 * (computed * _feed_forward_parameters(model) + _router_parameters(model))
    logits = 2 * model.hidden_size * model.vocab_size
    linear = model.layers * (attention.projection_flops(model) + feed_forward) + logits
    square = attention.score_flops(model, seq_len)
    causal = attention.causal_score_flops(model, seq_len) if attention.causal_score_flops else square // 2
    forward = linear + model.layers * causal
    recomputed = {"none": 0, "selective": model.layers * causal, "full": forward - logits}[recompute]
    return Flops(forward=forward, recomputed=recomputed, forward_full_square=linear + model.layers * square)


def dense_keys_per_query(seq_len: int) -> float:
    """Mean number of keys that a query of causal attention reads: all in its past, itself included."""
    return (seq_len + 1) / 2


def keys_read_per_query(model: ModelConfig, seq_len: int) -> float:
    """Mean number of keys that a query of this model's attention reads."""
    read = ATTENTION[model.attention.kind].keys_read_per_query
    return read(model, seq_len) if read else dense_keys_per_query(seq_len)


def kv_cache_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Bytes that decoding keeps for each token, over all layers."""
    return model.layers * ATTENTION[model.attention.kind].cached(model) * BYTES[dtype]


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
    common, experts = _rank_parameters(config, layout, stage), _rank_experts(config, layout)
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


def _rank_parameters(config: RunConfig, layout: Layout, stage: int) -> int:
    """Parameters on one rank besides experts; with several stages, the tied embedding is on the first and on the
    last."""
    model, tp = config.model, layout.tp
    attention = ATTENTION[model.attention.kind]
    whole = attention.replicated_parameters(model) + _router_parameters(model)
    split = attention.parameters(model) - attention.replicated_parameters(model)
    if model.moe is None:
        split += _feed_forward_parameters(model)
    count = layout.layers_per_stage * (split // tp + whole + 2 * model.hidden_size)
    count += POSITION[model.position.kind].rank_parameters(model, tp, stage == 0)
    if stage in (0, layout.pp - 1):
        count += _rank_embedding(config, layout)
    if stage == layout.pp - 1:
        count += model.hidden_size
    return count


def _rank_experts(config: RunConfig, layout: Layout) -> int:
    """Parameters of the experts on one rank; none in a dense model."""
    model = config.model
    if model.moe is None:
        return 0
    each = _feed_forward_parameters(model) // config.parallel.expert_tp
    return layout.layers_per_stage * model.moe.experts // layout.ep * each


def _rank_embedding(config: RunConfig, layout: Layout) -> int:
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
    embedding = _rank_embedding(config, layout) * dtype_bytes
    first, last = stage == 0, stage == layout.pp - 1
    waiting = embedding if last else 0
    lookup = waiting + embedding if first else 0
    return max(waiting + layer, lookup, loss_workspace_bytes(config, layout) if last else 0)


def loss_workspace_bytes(config: RunConfig, layout: Layout) -> int:
    """The loss over blocks of tokens: logits of one block (compute dtype, float32, and their gradient), the output
    embedding's float32 gradient, one block's contribution to it, and the gradient of the hidden states."""
    training = config.training
    dtype_bytes = BYTES[training.dtype]
    copies = 4 if dtype_bytes == 4 else 4 + 2 * dtype_bytes
    embedding = _rank_embedding(config, layout)
    tokens = _rank_tokens(config, layout)
    rows = padded_vocab_size(config.model.vocab_size, layout.tp) // layout.tp
    block = min(max(LOSS_BLOCK_ELEMENTS // rows, 1), tokens) * rows
    contribution = 0 if dtype_bytes == 4 else embedding * dtype_bytes
    return block * copies + embedding * 4 + contribution + tokens * config.model.hidden_size * dtype_bytes


LOSS_BLOCK_ELEMENTS = 2**24
"""Logits in one block of the loss; model/kernels/cross_entropy.py takes its blocks from here."""
