"""Formulas for the transfers between the ranks of a training run, without torch.

They count every transfer of the engine as this project sets it up, small ones too, but none in a group of one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.matrices import gathered_matrices
from efficientbench.costs.memory import rank_embedding, rank_experts, rank_parameters, rank_tokens
from efficientbench.costs.model import FLOAT32_BYTES
from efficientbench.costs.rank_grid import Group

Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]

INT64_BYTES = 8
GRADIENTS, WEIGHTS = "gradients of replicas", "weights of replicas"
"""Purposes of the transfers that may overlap with computing: see `parallel.overlap`."""


@dataclass(frozen=True)
class Transfer:
    """All transfers of one rank with the same purpose, operation and group, as one."""

    purpose: str
    operation: Operation
    group: Group
    payload_bytes: float
    """Bytes of the full tensor: an all-gather's result, a reduce-scatter's input, an all-to-all's input on one rank
    (the mean over ranks, where routing decides)."""
    calls: float = 1
    """Equal calls in which a rank sends it: of hidden states and tokens; all else counts as one."""

    def sent_bytes(self, size: int) -> float:
        """Return the bytes that each of the group's n = `size` ranks sends.

        A ring's all-reduce sends 2 (n − 1) / n of the payload, its all-gather and reduce-scatter (n − 1) / n, the least
        possible; an all-to-all with equal shares (n − 1) / n.
        """
        share = (size - 1) / size
        factors = {"all-reduce": 2 * share, "send": 1.0}
        return self.payload_bytes * factors.get(self.operation, share)


def micro_batch_transfers(config: RunConfig, layout: Layout, stage: int) -> list[Transfer]:
    """Return the transfers of a rank of a pipeline stage for each micro-batch, forward and backward."""
    return _merged(
        [
            *_tensor_parallel(config, layout, stage),
            *_context_parallel(config, layout),
            *_experts(config, layout),
            *_pipeline(config, layout, stage),
        ]
    )


def step_transfers(config: RunConfig, layout: Layout, stage: int) -> list[Transfer]:
    """Return the transfers of a rank of a pipeline stage that occur once in an optimizer step."""
    return _merged(
        [
            *_replicas(config, layout, stage),
            *_shared_weights(config, layout, stage),
            *_muon(config, layout),
            *_sums(config, layout),
        ]
    )


def _merged(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Add up the transfers that differ only in size, in order of first appearance, without empty ones."""
    sums: dict[tuple[str, Operation, Group], tuple[float, float]] = {}
    for each in transfers:
        key = (each.purpose, each.operation, each.group)
        size, calls = sums.get(key, (0.0, 0.0))
        sums[key] = size + each.payload_bytes, calls + each.calls
    return [Transfer(*key, size, calls) for key, (size, calls) in sums.items() if size]


def _tensor_parallel(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """Yield activations before column-parallel and after row-parallel layers, the embedding, and the vocabulary's loss.

    Formulas: arXiv 1909.08053, section 3; with sequence parallelism arXiv 2205.05198, section 4.2.2.
    """
    if layout.tp == 1:
        return
    model = config.model
    unit = rank_tokens(config, layout) * DTYPE_BYTES[config.training.dtype]
    # The first stage sums its embedding like a row-parallel layer. The last stage's output projection takes the hidden
    # states like a column-parallel layer, and computes its own weight's gradient, so it gathers them once.
    embedded = model.hidden_size if stage == 0 else 0
    projected = model.hidden_size if stage == layout.pp - 1 else 0
    widths: dict[Operation, int] = {"all-gather": 0, "reduce-scatter": 0} if layout.sp else {"all-reduce": 0}
    for each, count in config.stage_views:
        for operation, width in _layer_widths(each, layout).items():
            widths[operation] += count * width
    for operation, width in widths.items():
        elements = width + embedded + projected
        calls = elements / model.hidden_size
        yield Transfer("tensor parallelism: activations", operation, "tp", unit * elements, calls)
    for each, count in config.stage_views:
        yield from _weights_and_heads(each, layout, count)
    if projected:
        # Three numbers for each token: the largest logit, the sum of exponentials, and the label's logit.
        yield Transfer(
            "loss over a split vocabulary", "all-reduce", "tp", 3 * rank_tokens(config, layout) * FLOAT32_BYTES
        )


def _layer_widths(config: RunConfig, layout: Layout) -> dict[Operation, int]:
    """Return the elements per token of the activations that one layer's operations transfer."""
    model, forwards = config.model, 2 if config.training.recompute == "full" else 1
    attention = model.attention_variant.costs
    columns, shared = sum(attention.column_inputs(model)), attention.read_by_all_heads(model)
    rows = model.hidden_size
    if model.unrouted_networks:
        columns, rows = columns + model.hidden_size, 2 * model.hidden_size
    if layout.sp:
        return {
            "all-gather": (forwards + 1) * columns + forwards * shared + rows,
            "reduce-scatter": forwards * rows + columns + shared,
        }
    return {"all-reduce": forwards * rows + columns + shared}


def _weights_and_heads(config: RunConfig, layout: Layout, layers: int) -> Iterator[Transfer]:
    """Yield the heads that tp ranks gather in layers of one kind, and the gradients that they sum in a micro-batch."""
    model, forwards = config.model, 2 if config.training.recompute == "full" else 1
    attention, element_bytes = model.attention_variant.costs, DTYPE_BYTES[config.training.dtype]
    # Every rank gathers the heads that it shares with other ranks, and keeps its own.
    wide = layers * rank_tokens(config, layout) * element_bytes * attention.gathered_heads(model, layout.tp)
    yield Transfer("tensor parallelism: activations", "all-gather", "tp", forwards * wide)
    yield Transfer("tensor parallelism: activations", "reduce-scatter", "tp", wide)
    weights = layers * attention.summed_by_micro_batch(model) * element_bytes
    yield Transfer("gradients of weights on every tp rank", "all-reduce", "tp", weights)


def _context_parallel(config: RunConfig, layout: Layout) -> Iterator[Transfer]:
    """Yield gathered keys and values, again for recomputed attention, and the reduce-scatter of their gradients."""
    if layout.cp == 1:
        return
    forwards = 1 if config.training.recompute == "none" else 2
    tokens = rank_tokens(config, layout) * layout.cp
    elements = sum(
        count // layout.pp * view.attention_variant.costs.exchanged(view, layout.tp)
        for view, count in config.model.counted_views
    )
    size = tokens * elements * DTYPE_BYTES[config.training.dtype]
    yield Transfer("context parallelism: keys and values", "all-gather", "cp", forwards * size)
    yield Transfer("context parallelism: keys and values", "reduce-scatter", "cp", size)


def _experts(config: RunConfig, layout: Layout) -> Iterator[Transfer]:
    """Yield the transfers of tokens, with their weights, to the experts and back.

    They are an all-to-all over ep; where tp ranks split each expert, an all-gather and a reduce-scatter of all tokens.
    """
    moe = config.model.moe
    if moe is None:
        return
    forwards = 2 if config.training.recompute == "full" else 1
    layers, purpose = len(config.model.expert_layers) // layout.pp, "experts: tokens"
    split = layout.ep == 1 and layout.tp > 1
    copies: float = rank_tokens(config, layout) * moe.top_k
    token = config.model.hidden_size * DTYPE_BYTES[config.training.dtype]
    if layout.ep > 1:
        copies = copies / layout.tp
        size = layers * copies * (2 * token + FLOAT32_BYTES)
        # Tokens, their weights, and the experts' outputs.
        yield Transfer(purpose, "all-to-all", "ep", (forwards + 1) * size, 3 * layers * (forwards + 1))
    elif split:
        gathered = forwards * (token + FLOAT32_BYTES) + token
        scattered = forwards * token + token + FLOAT32_BYTES
        yield Transfer(purpose, "all-gather", "tp", layers * copies * gathered)
        yield Transfer(purpose, "reduce-scatter", "tp", layers * copies * scattered)
    if split or layout.ep > 1:
        counts = layers * forwards * moe.experts * INT64_BYTES * (layout.tp if split else layout.ep)
        yield Transfer("experts: counts", "all-gather", "tp" if split else "ep", counts, layers * forwards)
    if moe.auxiliary_loss and moe.auxiliary_over != "global" and layout.tp * layout.cp > 1:
        # Once even with recomputation: only the forward pass with a gradient computes the auxiliary loss.
        rows = config.training.micro_batch_size if moe.auxiliary_over == "sequence" else 1
        yield Transfer("experts: counts", "all-reduce", "tp × cp", rows * layers * moe.experts * INT64_BYTES)


def _pipeline(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """Yield activations to the next (virtual) stage and their gradients to the one before."""
    first, last = stage == 0, stage == layout.pp - 1
    sends = 2 * layout.vpp - first - last
    size = rank_tokens(config, layout) * config.model.hidden_size * DTYPE_BYTES[config.training.dtype]
    if layout.pp > 1:
        yield Transfer("pipeline: activations", "send", "pp", sends * size / (layout.tp if layout.sp else 1), sends)


def _replicas(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """Yield float32 gradients and weights among the ranks that hold the same weights (arXiv 1910.02054, section 5).

    The buffers' padding, less than 64 elements a parameter, is not counted.
    """
    common = rank_parameters(config, layout, stage)
    experts = rank_experts(config, layout)
    parameters: dict[Group, int] = {"dp": common + experts}
    if layout.ep > 1:
        parameters = {"dp": common, "expert dp": experts}
    sizes = {"dp": layout.cp * layout.dp, "expert dp": layout.tp * layout.cp * layout.dp // layout.ep}
    for group, count in parameters.items():
        if sizes[group] == 1:
            continue
        if not config.parallel.distributed_optimizer:
            yield Transfer(GRADIENTS, "all-reduce", group, count * FLOAT32_BYTES)
            continue
        yield Transfer(GRADIENTS, "reduce-scatter", group, count * FLOAT32_BYTES)
        # With ep > 1 megatron has two optimizers, and each gathers the weights of both after its update.
        gathers = 2 if layout.ep > 1 and not config.parallel.overlap else 1
        yield Transfer(WEIGHTS, "all-gather", group, gathers * count * DTYPE_BYTES[config.training.dtype])


def _shared_weights(config: RunConfig, layout: Layout, stage: int) -> Iterator[Transfer]:
    """Yield gradients of weights that several ranks hold in full.

    These are a tied embedding on the first and the last stage, T5's table on every stage, the norms that each tp rank
    applies to its own heads, and with sequence parallelism the weights that it applies to its own tokens.
    """
    model, position = config.model, config.model.own_view.position_variant
    first, last = stage == 0, stage == layout.pp - 1
    if layout.pp > 1 and model.tied and (first or last):
        size = rank_embedding(config, layout) * FLOAT32_BYTES
        yield Transfer("gradient of the tied embedding", "all-reduce", "embedding", size)
    if layout.pp > 1 and position.place == "scores":
        table = position.costs.rank_parameters(model.own_view, layout.tp, first) * FLOAT32_BYTES
        yield Transfer("gradient of the shared table", "all-reduce", "pp", table)
    if layout.tp > 1:
        count = _whole_on_tp_ranks(config, layout, stage)
        yield Transfer("gradients of weights on every tp rank", "all-reduce", "tp", count * FLOAT32_BYTES)


def _whole_on_tp_ranks(config: RunConfig, layout: Layout, stage: int) -> int:
    """Count the weights whose gradients the tp ranks of a stage sum, each having only its heads' or tokens' part."""
    model, position = config.model, config.model.own_view.position_variant
    if not layout.sp:
        return sum(layers * view.head_norm_parameters for view, layers in model.counted_views) // layout.pp
    count = model.outer_norm_parameters(stage == 0, stage == layout.pp - 1)
    for view, layers in model.counted_views:
        attention = view.attention_variant.costs
        replicated = attention.replicated_parameters(view) - attention.summed_by_micro_batch(view)
        count += layers // layout.pp * (view.layer_norm_parameters + view.router_parameters + replicated)
    if position.place == "embedding" and stage == 0:
        count += position.costs.parameters(model.own_view)
    return count


def _muon(config: RunConfig, layout: Layout) -> Iterator[Transfer]:
    """Yield the all-gather of the matrices that tensor-parallel ranks split: Muon orthogonalizes complete matrices."""
    if config.training.optimizer == "muon":
        element_bytes = DTYPE_BYTES["fp32" if config.training.dtype == "fp32" else "bf16"]
        yield Transfer("Muon: matrices", "all-gather", "tp", gathered_matrices(config, layout) * element_bytes)


def _sums(config: RunConfig, layout: Layout) -> Iterator[Transfer]:
    """Yield the gradient's norm, the routers' counts, each micro-batch's loss, tokens and bytes, and flags.

    The flags are for non-finite values, a stop and a checkpoint.
    """
    if layout.world_size == 1:
        return
    model = config.model
    counted = model.layers * (1 + model.moe.experts) if model.moe else 0
    # Ranks with parts of the gradient add up its norm; with a distributed optimizer every rank has a part. Without it,
    # the norm of experts that ep ranks share is summed over other ranks than the rest of the norm.
    sums_of_norms = 1 if config.parallel.distributed_optimizer else (layout.tp * layout.pp > 1) + (layout.ep > 1)
    yield Transfer("norm, loss and counts", "all-reduce", "world", sums_of_norms * FLOAT32_BYTES)
    # The host adds up what is gathered, since some devices lack float64.
    sums = layout.world_size * (6 + 3 * layout.micro_batches + counted) * FLOAT32_BYTES
    yield Transfer("norm, loss and counts", "all-gather", "world", sums)
