"""The grid of ranks, world = dp × pp × cp × tp, and the refusal of grids that cannot work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, lcm

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import ATTENTION
from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.part import AUTO
from efficientbench.config.schema import RunConfig

_WITHIN = "data.attention_within_documents"


@dataclass(frozen=True)
class Layout:
    """Division of a run's model and batch among its ranks."""

    world_size: int
    nodes: int
    tp: int
    sp: bool
    cp: int
    pp: int
    vpp: int
    dp: int
    ep: int
    layers_per_stage: int
    """Layers on each pipeline rank, in `vpp` virtual stages."""
    micro_batches: int
    """Micro-batches of one data-parallel replica in an optimizer step."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node."""
        return self.world_size // self.nodes

    @classmethod
    def of(cls, config: RunConfig, devices: int, nodes: int = 1, oversubscribe: bool = False) -> Layout:
        """Return the layout of `config` on `nodes` nodes with `devices` devices each.

        With `oversubscribe` (a CPU) ranks may share a device, and an unset dp is the smallest with a rank on every node
        and enough ranks for ep. Without it (accelerators) an unset dp takes all devices.

        Raises ConfigError: the layout cannot work; the message has every reason.
        """
        parallel = config.parallel
        model_ranks = parallel.tp * parallel.cp * parallel.pp
        problems: list[str] = []
        if parallel.dp is not None:
            dp = parallel.dp
        elif oversubscribe:
            # The least dp for which nodes divide model_ranks · dp, and ep divides cp · dp.
            dp = lcm(nodes // gcd(nodes, model_ranks), parallel.ep // gcd(parallel.ep, parallel.cp))
        else:
            dp = devices * nodes // model_ranks
            if devices * nodes % model_ranks:
                problems.append(
                    f"parallel.tp × cp × pp = {parallel.tp} × {parallel.cp} × {parallel.pp} = {model_ranks} must "
                    f"divide the {number_of(devices * nodes, 'device')} ({nodes} × {devices}): change one of them, or "
                    "set parallel.dp to use fewer"
                )
        world_size = model_ranks * dp
        # No replica fits where dp is 0, and the problem above already has the reason.
        problems += _ranks_problems(world_size, devices, nodes, oversubscribe) if dp else []
        problems += _shape_problems(config)
        problems += _pipeline_problems(config)
        problems += _context_problems(config)
        problems += _document_problems(config)
        problems += _expert_problems(config, dp)
        problems += _batch_problems(config, max(dp, 1))
        if problems:
            raise ConfigError(problems)
        return cls(
            world_size=world_size,
            nodes=nodes,
            tp=parallel.tp,
            sp=parallel.sp,
            cp=parallel.cp,
            pp=parallel.pp,
            vpp=parallel.vpp,
            dp=dp,
            ep=parallel.ep,
            layers_per_stage=config.model.layers // parallel.pp,
            micro_batches=config.training.global_batch_size // (config.training.micro_batch_size * dp),
        )


def whole_nodes(world: int, devices_per_node: int) -> tuple[int, int]:
    """Return the ranks of a node and the number of nodes; a world smaller than a node is one node.

    Raises ConfigError: the ranks do not fill complete nodes.
    """
    per_node = min(world, devices_per_node)
    if world % per_node:
        below = world // per_node * per_node
        raise ConfigError(
            f"--world: {world} ranks are not whole nodes of {per_node}: {below} or {below + per_node} would be, or "
            "another --devices-per-node"
        )
    return per_node, world // per_node


def fit_micro_batch(config: RunConfig, devices: int, nodes: int) -> RunConfig:
    """Return the run with a micro-batch that divides a data-parallel replica's share of the batch, where dp is unset.

    The configured micro-batch is then an upper limit, so that larger machines can run it too. Returns `config` itself
    where no change is needed, or none would help.
    """
    training, parallel = config.training, config.parallel
    dp = devices * nodes // (parallel.tp * parallel.cp * parallel.pp)
    if parallel.dp is not None or dp == 0 or training.global_batch_size % dp or training.micro_batch_size == AUTO:
        return config
    share = training.global_batch_size // dp
    # Interleaved stages take micro-batches in rounds of pp.
    rounds = share // parallel.pp if parallel.vpp > 1 and share % parallel.pp == 0 else share
    fitting = next(size for size in range(min(training.micro_batch_size, rounds), 0, -1) if rounds % size == 0)
    if fitting == training.micro_batch_size:
        return config
    return config.changed("training", micro_batch_size=fitting)


def context_chunks(rank: int, cp: int) -> tuple[int, int]:
    """Return the two of a sequence's 2 · cp chunks that a context-parallel rank computes.

    One is early and one late, so that all ranks compute equally many scores.
    """
    return rank, 2 * cp - 1 - rank


def padded_vocab_size(vocab_size: int, tp: int) -> int:
    """Return the rows of the embedding: the vocabulary, rounded up to a multiple of `tp`."""
    return -(-vocab_size // tp) * tp


def _messages(*rules: tuple[object, str]) -> list[str]:
    """Return the messages of the rules that are broken."""
    return [message for broken, message in rules if broken]


def _ranks_problems(world_size: int, devices: int, nodes: int, oversubscribe: bool) -> list[str]:
    are = "is" if devices * nodes == 1 else "are"
    return _messages(
        (
            not oversubscribe and world_size > devices * nodes,
            f"parallel: tp × cp × pp × dp = {world_size} ranks, but there {are} "
            f"{number_of(devices * nodes, 'device')} ({nodes} × {devices}): each rank needs one of its own",
        ),
        (
            world_size % nodes,
            f"parallel: tp × cp × pp × dp = {number_of(world_size, 'rank')} cannot be spread evenly over {nodes} nodes",
        ),
    )


def _shape_problems(config: RunConfig) -> list[str]:
    model, parallel, seq_len = config.model, config.parallel, config.training.seq_len
    tp, rows = parallel.tp, seq_len if model.position.longest is None else model.position.longest
    return [
        *_messages((model.heads % tp, f"parallel.tp: {tp} does not divide the {model.heads} heads (model.heads)")),
        *_of_each_kind(model, lambda view: _layer_problems(config, view)),
        *_messages(
            (
                parallel.sp and tp == 1,
                "parallel.sp: sequence parallelism splits over tensor-parallel ranks: set parallel.tp above 1",
            ),
            (
                parallel.sp and seq_len % tp,
                f"parallel.sp: tp {tp} does not divide the sequence of {seq_len} tokens (training.seq_len)",
            ),
            (
                seq_len > rows,
                f"training.seq_len: {seq_len} tokens are more than the {rows} positions that the model has rows for "
                "(model.position.max_seq_len)",
            ),
        ),
    ]


def _of_each_kind(model: ModelConfig, problems: Callable[[ModelConfig], list[str]]) -> list[str]:
    """Return the problems of each view; where kinds have the same problem, it is named once."""
    found = [(name, problem) for name, view in model.views.items() for problem in problems(view)]
    return list(dict.fromkeys(model.keys_of_kind(name, problem) for name, problem in found))


def _layer_problems(config: RunConfig, view: ModelConfig) -> list[str]:
    """Return the problems of a kind of layer in this layout: what it cannot do, or does not declare."""
    attention, kind, tp = view.attention_variant, view.attention.kind, config.parallel.tp
    shared = attention.tensor_parallel
    # Ranks that share the experts among them do not split each.
    split = view.ffn_hidden_size * (view.unrouted_networks if config.parallel.ep > 1 else 1)
    return [
        *(shared(view, tp) if shared else []),
        *_messages(
            (
                tp > 1 and shared is None,
                f"parallel.tp: attention {kind!r} does not declare that ranks can share it: set parallel.tp=1",
            ),
            (
                config.training.recompute == "selective" and not attention.selective_recomputation,
                f"training.recompute: attention {kind!r} does not declare that it can be computed again by itself: set "
                "training.recompute to none or full",
            ),
            (
                split % tp,
                f"parallel.tp: {tp} does not divide the feed-forward width {split}",
            ),
        ),
    ]


def _pipeline_problems(config: RunConfig) -> list[str]:
    layers, pp, vpp = config.model.layers, config.parallel.pp, config.parallel.vpp
    kinds = config.model.layer_kinds
    uneven = layers % (pp * vpp) == 0 and not _stages_alike(kinds, pp * vpp)
    even = [str(stages) for stages in range(1, layers + 1) if layers % stages == 0 and _stages_alike(kinds, stages)]
    return _messages(
        (layers % pp, f"parallel.pp: {pp} stages do not divide the {layers} layers (model.layers)"),
        (
            layers % pp == 0 and layers % (pp * vpp),
            f"parallel.vpp: {pp} × {vpp} = {pp * vpp} virtual stages do not divide the {layers} layers (model.layers)",
        ),
        (
            vpp > 1 and pp == 1,
            "parallel.vpp: virtual stages interleave those of several ranks: set parallel.pp above 1",
        ),
        (
            uneven,
            f"parallel.pp: {pp} × vpp {vpp} stages of {layers // (pp * vpp)} layers would differ in the kinds of their "
            f"layers (model.pattern), and the others would wait for the slowest: {' or '.join(even)} stages are alike",
        ),
    )


def _stages_alike(kinds: Sequence[str], stages: int) -> bool:
    """Return whether so many stages have equally many layers of each kind."""
    size = len(kinds) // stages
    return len({tuple(sorted(kinds[first : first + size])) for first in range(0, len(kinds), size)}) == 1


def _context_problems(config: RunConfig) -> list[str]:
    model, parallel, seq_len = config.model, config.parallel, config.training.seq_len
    cp = parallel.cp
    if cp == 1:
        return []
    return _of_each_kind(model, _not_shared) + _messages(
        (
            seq_len % (2 * cp),
            f"parallel.cp: {cp} ranks hold two chunks of a sequence each, and 2 × {cp} do not divide its {seq_len} "
            "tokens (training.seq_len)",
        ),
        (
            seq_len % (2 * cp) == 0 and parallel.sp and seq_len // cp % parallel.tp,
            f"parallel.sp: tp {parallel.tp} does not divide the {seq_len // cp} tokens that one of {cp} "
            "context-parallel ranks holds",
        ),
    )


def _not_shared(view: ModelConfig) -> list[str]:
    """Return why context-parallel ranks cannot share a sequence in a kind of layer."""
    attention, kind = view.attention.kind, view.position.kind
    biased = view.position_variant.place == "scores"
    positions = f"the scores' bias of {kind!r} positions" if biased else f"the encoding {kind!r}"
    return _messages(
        (
            not view.shares_sequence,
            f"parallel.cp: attention {attention!r} does not share a sequence over ranks: set parallel.cp=1",
        ),
        (
            not view.position_variant.context_parallel,
            f"parallel.cp: {positions} does not share a sequence over ranks: set parallel.cp=1",
        ),
    )


def _document_problems(config: RunConfig) -> list[str]:
    if not config.data.attention_within_documents:
        return []
    return _messages(
        (
            config.training.objective != "pretrain",
            f"{_WITHIN}: it separates documents, and training.objective={config.training.objective} learns from "
            "conversations: leave it out",
        ),
    ) + _of_each_kind(config.model, _not_within_documents)


def _not_within_documents(view: ModelConfig) -> list[str]:
    """Return why attention cannot end at document ends in a kind of layer."""
    return _messages(
        (
            view.attention_variant.within_documents is None,
            f"{_WITHIN}: attention {view.attention.kind!r} does not declare that it can "
            f"(AttentionVariant.within_documents): leave it out, or set model.attention.kind to "
            f"{_within_documents('cpu')}",
        ),
        (
            not view.position_variant.decodes,
            f"{_WITHIN}: the encoding {view.position.kind!r} does not declare that a row can have positions of its own "
            "(PositionVariant.decodes): leave it out",
        ),
    )


def check_documents(config: RunConfig, device_type: str) -> None:
    """Raise a ConfigError if the attention shall end at document ends, and cannot on this device type."""
    for view in config.model.views.values():
        serves = view.attention_variant.within_documents
        if config.data.attention_within_documents and serves and device_type not in serves:
            raise ConfigError(
                f"{_WITHIN}: attention {view.attention.kind!r} can on {' and '.join(serves)} alone, and not on "
                f"{device_type}: leave it out, or set model.attention.kind to {_within_documents(device_type)}"
            )


def _within_documents(device_type: str) -> str:
    """Return the attention variants that can end at document ends on a device type, for messages."""
    serves = {name: each.within_documents for name, each in ATTENTION.items()}
    return " or ".join(name for name, types in serves.items() if types == () or device_type in (types or ()))


def _expert_problems(config: RunConfig, dp: int) -> list[str]:
    moe, parallel = config.model.moe, config.parallel
    ep, tp, replicas = parallel.ep, parallel.tp, dp * parallel.cp
    if moe is None:
        absent = f"parallel.ep: {ep} ranks cannot share experts that the model does not have (model.moe)"
        return _messages((ep > 1, absent))
    return _messages(
        (moe.experts % ep, f"parallel.ep: {ep} does not divide the {moe.experts} experts (model.moe.experts)"),
        (
            replicas % ep,
            f"parallel.ep: {ep} does not divide the {replicas} data-parallel ranks (parallel.dp × parallel.cp)",
        ),
        (
            tp > 1 and not parallel.sp,
            f"parallel.tp: with tp {tp} alone each rank would route every token, and experts would count it {tp} "
            "times: set parallel.sp=true",
        ),
    )


def _batch_problems(config: RunConfig, dp: int) -> list[str]:
    pp, vpp, batch = config.parallel.pp, config.parallel.vpp, config.training.global_batch_size
    micro_batch = config.training.micro_batch_size
    if micro_batch == AUTO:
        return ["training.micro_batch_size: auto is decided by `run` and `sweep`, on the devices: give a number here"]
    micro_batches, rest = divmod(batch, micro_batch * dp)
    nearest_multiple = max(round(batch / (micro_batch * dp)), 1) * micro_batch * dp
    return _messages(
        (
            rest,
            f"training.global_batch_size: {batch} is not a multiple of micro_batch_size × dp = {micro_batch} × {dp}: "
            f"{nearest_multiple} would be",
        ),
        (
            rest == 0 and vpp > 1 and micro_batches % pp,
            f"parallel.vpp: interleaved stages take micro-batches in rounds of parallel.pp = {pp}, which does not "
            f"divide the {micro_batches} of a step (global_batch_size / (micro_batch_size × dp))",
        ),
        (
            config.data.split[0] == 0,
            f"data.split: {list(config.data.split)} leaves nothing to train on: its first part is zero",
        ),
    )
