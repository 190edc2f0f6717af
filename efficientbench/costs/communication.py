"""What the ranks of a training run send one another, as pure formulas; no torch.

As the engine sends it in this harness: nothing is left out for being small, and nothing is counted that a group of one
rank would send to itself. T = tokens of a micro-batch on one rank, H = hidden size, t = tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from efficientbench.config.layout import Layout
from efficientbench.config.model import MLAConfig, RelativeConfig
from efficientbench.config.schema import RunConfig
from efficientbench.costs import memory as memory_cost
from efficientbench.costs.attention import ATTENTION
from efficientbench.costs.model import BYTES, POSITION, router_parameters
from efficientbench.costs.rank_grid import Group

Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]

FLOAT32 = 4
INT64 = 8


@dataclass(frozen=True)
class Transfer:
    """What one rank takes part in, of one kind and purpose, in the same group."""

    purpose: str
    operation: Operation
    group: Group
    payload_bytes: float
    """Of an all-reduce the tensor, of an all-gather what all have in the end, of a reduce-scatter what each brings, of
    an all-to-all what this rank brings (the mean over ranks, where routing decides), of a send the message."""

    def sent_bytes(self, size: int) -> float:
        """What each of `size` ranks sends: a ring's all-reduce, all-gather and reduce-scatter (2 (n − 1) / n and twice
        (n − 1) / n of the payload, the least that is possible), an all-to-all with equal shares."""
        share = (size - 1) / size
        factors = {"all-reduce": 2 * share, "send": 1.0}
        return self.payload_bytes * factors.get(self.operation, share)


def micro_batch_transfers(config: RunConfig, layout: Layout, stage: int) -> list[Transfer]:
    """Of a rank of a pipeline stage for each micro-batch, forward and backward."""
    return _merged(
        [
            *_tensor_parallel(config, layout, stage),
            *_context_parallel(config, layout),
            *_experts(config, layout),
            *_pipeline(config, layout, stage),
        ]
    )


def step_transfers(config: RunConfig, layout: Layout, stage: int) -> list[Transfer]:
    """Of a rank of a pipeline stage once in an optimizer step."""
    return _merged([*_replicas(config, layout, stage), *_shared_weights(config, layout, stage), *_sums(config, layout)])


def _merged(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Those alike in all but size, added up, in the order of first appearance; without empty ones."""
    sums: dict[tuple[str, Operation, Group], float] = {}
    for each in transfers:
        key = (each.purpose, each.operation, each.group)
        sums[key] = sums.get(key, 0) + each.payload_bytes
    return [Transfer(*key, size) for key, size in sums.items() if size]


def _tensor_parallel(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """Activations before column-parallel and after row-parallel layers (arXiv 1909.08053, section 3; with sequence
    parallelism arXiv 2205.05198, section 4.2.2), the embedding, and the loss over a split vocabulary."""
    if layout.tp == 1:
        return
    model = config.model
    unit = _tokens(config, layout) * BYTES[config.training.dtype]
    forwards = 2 if config.training.recompute == "full" else 1
    columns = sum(ATTENTION[model.attention.kind].column_inputs(model))
    rows = model.hidden_size
    if model.moe is None:
        columns, rows = columns + model.hidden_size, 2 * model.hidden_size
    # The first stage's embedding is summed as row-parallel layers are; the last stage's hidden states go into the
    # output projection as into a column-parallel layer, which computes its own weight's gradient.
    embedded = model.hidden_size if stage == 0 else 0
    projected = model.hidden_size if stage == layout.pp - 1 else 0
    shared = model.attention.qk_rope_head_dim if isinstance(model.attention, MLAConfig) else 0
    layers = layout.layers_per_stage
    widths: dict[Operation, int]
    if layout.sp:
        widths = {
            "all-gather": layers * ((forwards + 1) * columns + forwards * shared + rows) + embedded + projected,
            "reduce-scatter": layers * (forwards * rows + columns + shared) + embedded + projected,
        }
    else:
        widths = {"all-reduce": layers * (forwards * rows + columns + shared) + embedded + projected}
    for operation, width in widths.items():
        yield Transfer("tensor parallelism: activations", operation, "tp", unit * width)
    yield from _wide_heads(config, layout, layers * unit, forwards)
    if projected:
        # Of each token: the largest logit, the sum of exponentials, and the label's logit.
        yield Transfer("loss over a split vocabulary", "all-reduce", "tp", 3 * _tokens(config, layout) * FLOAT32)
    if model.attention.kind == "nsa":
        weights = layers * ATTENTION["nsa"].replicated_parameters(model) * BYTES[config.training.dtype]
        yield Transfer("gradients of weights on every tp rank", "all-reduce", "tp", weights)


def _wide_heads(config: RunConfig, layout: Layout, unit: float, forwards: int) -> Iterator[Transfer]:
    """Queries, keys and values of all heads, where ranks are more than key-value heads: each gathers them, and keeps
    its own."""
    model = config.model
    if model.attention.kind != "gqa" or layout.tp <= model.key_value_heads:
        return
    width = (model.heads + 2 * model.key_value_heads) * model.head_dim
    yield Transfer("tensor parallelism: activations", "all-gather", "tp", forwards * unit * width)
    yield Transfer("tensor parallelism: activations", "reduce-scatter", "tp", unit * width)


def _context_parallel(config: RunConfig, layout: Layout) -> Iterator[Transfer]:
    """Keys and values gathered, their gradients reduced and scattered; recomputed attention gathers them again."""
    if layout.cp == 1:
        return
    forwards = 1 if config.training.recompute == "none" else 2
    tokens = _tokens(config, layout) * layout.cp
    elements = ATTENTION[config.model.attention.kind].exchanged(config.model, layout.tp)
    size = layout.layers_per_stage * tokens * elements * BYTES[config.training.dtype]
    yield Transfer("context parallelism: keys and values", "all-gather", "cp", forwards * size)
    yield Transfer("context parallelism: keys and values", "reduce-scatter", "cp", size)


def _experts(config: RunConfig, layout: Layout) -> Iterator[Transfer]:
    """Tokens with their weights to the experts and back: an all-to-all over ep, or where each expert is split over tp
    ranks, a gather of all their tokens."""
    moe = config.model.moe
    if moe is None:
        return
    forwards = 2 if config.training.recompute == "full" else 1
    layers, purpose = layout.layers_per_stage, "experts: tokens"
    split = layout.ep == 1 and layout.tp > 1
    copies: float = _tokens(config, layout) * moe.top_k
    token = config.model.hidden_size * BYTES[config.training.dtype]
    if layout.ep > 1:
        copies = copies / layout.tp
        size = layers * copies * (2 * token + FLOAT32)
        yield Transfer(purpose, "all-to-all", "ep", (forwards + 1) * size)
    elif split:
        gathered = forwards * (token + FLOAT32) + token
        scattered = forwards * token + token + FLOAT32
        yield Transfer(purpose, "all-gather", "tp", layers * copies * gathered)
        yield Transfer(purpose, "reduce-scatter", "tp", layers * copies * scattered)
    if split or layout.ep > 1:
        counts = layers * forwards * moe.experts * INT64 * (layout.tp if split else layout.ep)
        yield Transfer("experts: counts", "all-gather", "tp" if split else "ep", counts)
    if moe.auxiliary_loss and layout.tp * layout.cp > 1:
        # Once, though recomputed: only the forward pass that has a gradient computes the auxiliary loss.
        yield Transfer("experts: counts", "all-reduce", "tp × cp", layers * moe.experts * INT64)


def _pipeline(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """Activations to the next (virtual) stage, their gradients to the one before."""
    first, last = stage == 0, stage == layout.pp - 1
    sends = 2 * layout.vpp - first - last
    size = _tokens(config, layout) * config.model.hidden_size * BYTES[config.training.dtype]
    if layout.pp > 1:
        yield Transfer("pipeline: activations", "send", "pp", sends * size / (layout.tp if layout.sp else 1))


def _replicas(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """float32 gradients and weights over the ranks that hold the same ones (arXiv 1910.02054, section 5). The buffers'
    padding, less than 64 elements a parameter, is left out."""
    common = memory_cost.rank_parameters(config, layout, stage)
    experts = memory_cost.rank_experts(config, layout)
    held: dict[Group, int] = {"dp": common + experts}
    if layout.ep > 1:
        held = {"dp": common, "expert dp": experts}
    sizes = {"dp": layout.cp * layout.dp, "expert dp": layout.tp * layout.cp * layout.dp // layout.ep}
    for group, count in held.items():
        if sizes[group] == 1:
            continue
        if not config.parallel.distributed_optimizer:
            yield Transfer("gradients of replicas", "all-reduce", group, count * FLOAT32)
            continue
        yield Transfer("gradients of replicas", "reduce-scatter", group, count * FLOAT32)
        # With experts shared out the engine has two optimizers, and each gathers the weights of both.
        gathers = 2 if layout.ep > 1 else 1
        yield Transfer("weights of replicas", "all-gather", group, gathers * count * BYTES[config.training.dtype])


def _shared_weights(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """Gradients of weights that several ranks hold whole: the tied embedding on the first and the last stage, T5's
    table on every stage, and with sequence parallelism what each tp rank applies to its own tokens."""
    model = config.model
    if layout.pp > 1 and stage in (0, layout.pp - 1):
        size = memory_cost.rank_embedding(config, layout) * FLOAT32
        yield Transfer("gradient of the tied embedding", "all-reduce", "embedding", size)
    if layout.pp > 1 and isinstance(model.position, RelativeConfig):
        table = POSITION["relative"].rank_parameters(model, layout.tp, stage == 0) * FLOAT32
        yield Transfer("gradient of the shared table", "all-reduce", "pp", table)
    if not layout.sp:
        return
    whole = 2 * model.hidden_size + router_parameters(model)
    if model.attention.kind == "mla":
        whole += ATTENTION["mla"].replicated_parameters(model)
    count = layout.layers_per_stage * whole
    count += model.hidden_size if stage == layout.pp - 1 else 0
    if model.position.kind == "learnable_absolute" and stage == 0:
        count += POSITION["learnable_absolute"].parameters(model)
    yield Transfer("gradients of weights on every tp rank", "all-reduce", "tp", count * FLOAT32)


def _sums(config: RunConfig, layout: Layout) -> Iterator[Transfer]:
    """The gradient's norm; what is not finite and the wish to stop; loss, tokens and bytes of each micro-batch; what
    routers counted."""
    if layout.world_size == 1:
        return
    model = config.model
    counted = model.layers * (1 + model.moe.experts) if model.moe else 0
    # Of the ranks that hold a part of the gradient; all of them where they share the optimizer's states.
    norm = FLOAT32 if config.parallel.distributed_optimizer or layout.tp * layout.pp > 1 else 0
    yield Transfer("norm, loss and counts", "all-reduce", "world", norm)
    # Gathered and added on the host, for devices without float64.
    sums = layout.world_size * (4 + 3 * layout.micro_batches + counted) * FLOAT32
    yield Transfer("norm, loss and counts", "all-gather", "world", sums)


def _tokens(config: RunConfig, layout: Layout) -> int:
    return config.training.micro_batch_size * config.training.seq_len // layout.cp
