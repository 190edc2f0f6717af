"""The grid of ranks, world = dp × pp × cp × tp, and the refusal of grids that cannot work."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

from efficientbench.config.errors import ConfigError
from efficientbench.config.model import LearnableAbsoluteConfig
from efficientbench.config.schema import RunConfig

CONTEXT_PARALLEL_ATTENTION = ("gqa", "mla")
"""Attention variants that work on a sequence shared by context-parallel ranks."""
CONTEXT_PARALLEL_POSITIONS = ("rope", "none", "absolute", "learnable_absolute")
"""Positional encodings that work on a sequence shared by context-parallel ranks."""


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
                    f"divide the {devices * nodes} devices ({nodes} × {devices}): change one of them, or set "
                    "parallel.dp to use fewer"
                )
        world_size = model_ranks * dp
        # No replica fits where dp is 0, and the problem above already has the reason.
        problems += _ranks_problems(world_size, devices, nodes, oversubscribe) if dp else []
        problems += _shape_problems(config)
        problems += _pipeline_problems(config)
        problems += _context_problems(config)
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


def fit_micro_batch(config: RunConfig, devices: int, nodes: int) -> RunConfig:
    """Return the run with a micro-batch that its data-parallel replicas can fill, where dp is unset.

    The configured micro-batch is then an upper limit, so that larger machines can run it too. Returns `config` itself
    where nothing has to change, or nothing would help.
    """
    training, parallel = config.training, config.parallel
    dp = devices * nodes // (parallel.tp * parallel.cp * parallel.pp)
    if parallel.dp is not None or dp == 0 or training.global_batch_size % dp:
        return config
    share = training.global_batch_size // dp
    # Interleaved stages take micro-batches in rounds of pp.
    rounds = share // parallel.pp if parallel.vpp > 1 and share % parallel.pp == 0 else share
    fitting = next(size for size in range(min(training.micro_batch_size, rounds), 0, -1) if rounds % size == 0)
    if fitting == training.micro_batch_size:
        return config
    return config.model_copy(update={"training": training.model_copy(update={"micro_batch_size": fitting})})


def context_chunks(rank: int, cp: int) -> tuple[int, int]:
    """Return the two of a sequence's 2 · cp chunks that a context-parallel rank computes.

    One is early and one late, so that all ranks compute as many scores.
    """
    return rank, 2 * cp - 1 - rank


def padded_vocab_size(vocab_size: int, tp: int) -> int:
    """Return the rows of the embedding: the vocabulary, rounded up to a multiple of `tp`."""
    return -(-vocab_size // tp) * tp


def _ranks_problems(world_size: int, devices: int, nodes: int, oversubscribe: bool) -> list[str]:
    problems = []
    if not oversubscribe and world_size > devices * nodes:
        problems.append(
            f"parallel: tp × cp × pp × dp = {world_size} ranks, but there are {devices * nodes} devices "
            f"({nodes} × {devices}): each rank needs one of its own"
        )
    if world_size % nodes:
        problems.append(f"parallel: tp × cp × pp × dp = {world_size} ranks cannot be spread evenly over {nodes} nodes")
    return problems


def _shape_problems(config: RunConfig) -> list[str]:
    model, parallel, seq_len = config.model, config.parallel, config.training.seq_len
    tp, groups = parallel.tp, model.key_value_heads
    problems = []
    if model.heads % tp:
        problems.append(f"parallel.tp: {tp} does not divide the {model.heads} heads (model.heads)")
    if model.attention.kind == "nsa" and groups % tp:
        problems.append(
            f"parallel.tp: {tp} does not divide the {groups} query groups (model.attention.query_groups): "
            "tensor-parallel ranks of NSA hold whole groups"
        )
    elif groups != model.heads:
        problems += _group_problems(tp, groups, model.head_dim)
    if model.ffn_hidden_size % tp and parallel.ep == 1:
        problems.append(f"parallel.tp: {tp} does not divide the feed-forward width {model.ffn_hidden_size}")
    if parallel.sp and tp == 1:
        problems.append("parallel.sp: sequence parallelism splits over tensor-parallel ranks: set parallel.tp above 1")
    if parallel.sp and seq_len % tp:
        problems.append(f"parallel.sp: tp {tp} does not divide the sequence of {seq_len} tokens (training.seq_len)")
    if isinstance(model.position, LearnableAbsoluteConfig) and seq_len > model.position.max_seq_len:
        problems.append(
            f"training.seq_len: {seq_len} tokens are more than the {model.position.max_seq_len} positions that "
            "the model has rows for (model.position.max_seq_len)"
        )
    return problems


def _pipeline_problems(config: RunConfig) -> list[str]:
    layers, pp, vpp = config.model.layers, config.parallel.pp, config.parallel.vpp
    problems = []
    if layers % pp:
        problems.append(f"parallel.pp: {pp} stages do not divide the {layers} layers (model.layers)")
    elif layers % (pp * vpp):
        problems.append(
            f"parallel.vpp: {pp} × {vpp} = {pp * vpp} virtual stages do not divide the {layers} layers (model.layers)"
        )
    if vpp > 1 and pp == 1:
        problems.append("parallel.vpp: virtual stages interleave those of several ranks: set parallel.pp above 1")
    return problems


def _context_problems(config: RunConfig) -> list[str]:
    model, parallel, seq_len = config.model, config.parallel, config.training.seq_len
    cp, position = parallel.cp, model.position.kind
    if cp == 1:
        return []
    problems = []
    if model.attention.kind not in CONTEXT_PARALLEL_ATTENTION:
        problems.append(
            f"parallel.cp: attention {model.attention.kind!r} does not share a sequence over ranks: set parallel.cp=1"
        )
    if position not in CONTEXT_PARALLEL_POSITIONS:
        problems.append(
            f"parallel.cp: the scores' bias of {position!r} positions does not share a sequence over ranks: "
            "set parallel.cp=1"
        )
    if seq_len % (2 * cp):
        problems.append(
            f"parallel.cp: {cp} ranks hold two chunks of a sequence each, and 2 × {cp} do not divide its {seq_len} "
            "tokens (training.seq_len)"
        )
    elif parallel.sp and seq_len // cp % parallel.tp:
        problems.append(
            f"parallel.sp: tp {parallel.tp} does not divide the {seq_len // cp} tokens that one of {cp} "
            "context-parallel ranks holds"
        )
    return problems


def _expert_problems(config: RunConfig, dp: int) -> list[str]:
    moe, parallel = config.model.moe, config.parallel
    if moe is None:
        if parallel.ep > 1:
            return [f"parallel.ep: {parallel.ep} ranks cannot share experts that the model does not have (model.moe)"]
        return []
    problems = []
    if moe.experts % parallel.ep:
        problems.append(f"parallel.ep: {parallel.ep} does not divide the {moe.experts} experts (model.moe.experts)")
    if dp * parallel.cp % parallel.ep:
        problems.append(
            f"parallel.ep: {parallel.ep} does not divide the {dp * parallel.cp} data-parallel ranks "
            "(parallel.dp × parallel.cp)"
        )
    if parallel.tp > 1 and not parallel.sp:
        problems.append(
            f"parallel.tp: with tp {parallel.tp} alone each rank would route every token, and experts would count it "
            f"{parallel.tp} times: set parallel.sp=true"
        )
    return problems


def _group_problems(tp: int, groups: int, head_dim: int) -> list[str]:
    if groups % tp and tp % groups:
        return [
            f"parallel.tp: {tp} is neither a divisor nor a multiple of the {groups} query groups "
            "(model.attention.query_groups)"
        ]
    if 2 * groups * head_dim % tp:
        return [f"parallel.tp: {tp} does not divide the key and value widths 2 × {groups} × {head_dim}"]
    return []


def _batch_problems(config: RunConfig, dp: int) -> list[str]:
    training, parallel = config.training, config.parallel
    step = training.micro_batch_size * dp
    problems = []
    if training.global_batch_size % step:
        problems.append(
            f"training.global_batch_size: {training.global_batch_size} is not a multiple of micro_batch_size × dp = "
            f"{training.micro_batch_size} × {dp}: {_nearest_multiple(training.global_batch_size, step)} would be"
        )
    elif parallel.vpp > 1 and training.global_batch_size // (training.micro_batch_size * dp) % parallel.pp:
        problems.append(
            f"parallel.vpp: interleaved stages take micro-batches in rounds of parallel.pp = {parallel.pp}, which does "
            f"not divide the {training.global_batch_size // (training.micro_batch_size * dp)} of a step "
            "(global_batch_size / (micro_batch_size × dp))"
        )
    if config.data.split[0] == 0:
        problems.append(f"data.split: {list(config.data.split)} leaves nothing to train on: its first part is zero")
    return problems


def _nearest_multiple(number: int, of: int) -> int:
    return max(round(number / of), 1) * of
