"""Check that a run fits into memory, and name the changes of its command line that would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import lcm

from efficientbench.architecture.variant import known
from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.planning.plan import Plan, gigabytes, make_plan, memory_parts


class DoesNotFitError(ConfigError):
    """The memory estimate of a run is above the available memory; `plan` has the estimate."""

    def __init__(self, plan: Plan, problem: str) -> None:
        super().__init__(problem)
        self.plan = plan


def check_fits(plan: Plan, capacity_bytes: int, shared: bool, same_ranks: bool = False) -> None:
    """Check that a run fits into memory; a run whose memory no formula gives passes.

    `capacity_bytes`: memory of one device or, with `shared`, of a node, whose ranks all share it, as on a CPU.
    `same_ranks`: as of `remedies`.

    Raises:
        DoesNotFitError: the run does not fit; the message has estimate, capacity, and changes that would make it fit.
    """
    needed = known(lambda: _needed(plan, shared))
    if needed is None or needed <= capacity_bytes:
        return
    stage = max(plan.memory, key=lambda each: each.total)
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in memory_parts(stage) if size >= 1e7)
    who = "the ranks of a node together need" if shared and plan.layout.ranks_per_node > 1 else "a rank needs"
    where = "this machine has" if shared else "a device has"
    found = remedies(plan, capacity_bytes, shared, same_ranks)
    helps = f"what would help: {'; '.join(found)}" if found else "nothing short of another model would help"
    raise DoesNotFitError(
        plan,
        f"{plan.config.name} does not fit: {who} about {gigabytes(needed)} and {where} {gigabytes(capacity_bytes)} "
        f"(largest rank: {parts}); {helps}",
    )


Changes = Iterator[tuple[str, RunConfig]]
"""Command-line arguments that change a run, each with the changed configuration; the mildest first."""
Kind = Callable[[Plan], Changes]
"""A kind of change of a planned run."""

TP_SIZES = (1, 2, 4, 8)
"""Tensor-parallel sizes that a remedy may name."""
PP_SIZES = (1, 2, 4, 8, 16)
"""Numbers of pipeline stages that a remedy may name."""


def remedies(plan: Plan, capacity_bytes: int, shared: bool = False, same_ranks: bool = False) -> list[str]:
    """Return the mildest change of each kind that makes a run fit, if any does.

    Changes are combined where no change that keeps sequence and ranks suffices alone.

    Args:
        plan: the plan of a run that does not fit.
        capacity_bytes: as in `check_fits`.
        shared: as in `check_fits`.
        same_ranks: whether the changes keep the number of ranks, in another layout.
    """

    def first(kind: Kind) -> str | None:
        return next((text for text, config in kind(plan) if _fits(plan, config, capacity_bytes, shared)), None)

    smoke = None if same_ranks else first(_smoke)
    here = [first(_smaller_micro_batch), first(_recomputation)]
    if not any(here):
        here = [first(_fewest_activations)]
    shorter = first(_shorter_sequence)
    spread = _other_grids if same_ranks else _more_ranks
    elsewhere = [None if same_ranks else first(_shared_experts), first(spread)]
    if not any(here):
        shorter = shorter or first(_joined(_fewest_activations, _shorter_sequence))
        if not any(elsewhere):
            elsewhere = [first(_joined(_fewest_activations, spread))]
    return [text for text in (smoke, *here, shorter, *elsewhere) if text]


def _fits(plan: Plan, config: RunConfig, capacity_bytes: int, shared: bool) -> bool:
    try:
        layout = Layout.of(config, plan.layout.ranks_per_node, plan.layout.nodes, oversubscribe=True)
        return _needed(make_plan(config, layout, plan.runtime_bytes), shared) <= capacity_bytes
    except ConfigError:
        return False


def _needed(plan: Plan, shared: bool) -> int:
    return plan.node_memory_bytes() if shared else plan.rank_memory_bytes()


def _joined(first: Kind, second: Kind) -> Kind:
    """Return the kind of change that makes a change of `first`, and then one of `second`."""

    def both(plan: Plan) -> Changes:
        for text, config in first(plan):
            for further, changed in second(replace(plan, config=config)):
                yield f"{text} {further}", changed

    return both


def _smoke(plan: Plan) -> Changes:
    if plan.config.smoke:
        return
    # A run of the user's own matrix may be missing in the shipped one.
    with suppress(ConfigError):
        yield "--smoke", resolve(f"{plan.config.variant}_{plan.config.size}", smoke=True)


def _smaller_micro_batch(plan: Plan) -> Changes:
    for size in range(plan.config.training.micro_batch_size - 1, 0, -1):
        yield f"training.micro_batch_size={size}", _with(plan, "training", {"micro_batch_size": size})


def _recomputation(plan: Plan) -> Changes:
    if plan.config.training.recompute != "full":
        yield "training.recompute=full", _with(plan, "training", {"recompute": "full"})


def _fewest_activations(plan: Plan) -> Changes:
    """Yield the smallest micro-batch with full recomputation."""
    least = {"micro_batch_size": 1, "recompute": "full"}
    changes = {key: value for key, value in least.items() if getattr(plan.config.training, key) != value}
    if changes:
        text = " ".join(f"training.{key}={value}" for key, value in changes.items())
        yield text, _with(plan, "training", changes)


def _shorter_sequence(plan: Plan) -> Changes:
    seq_len = plan.config.training.seq_len // 2
    while seq_len >= 128:
        yield f"training.seq_len={seq_len}", _with(plan, "training", {"seq_len": seq_len})
        seq_len //= 2


def _shared_experts(plan: Plan) -> Changes:
    """Yield larger values of ep, each with enough replicas to share the experts."""
    layout, moe = plan.layout, plan.config.model.moe
    for ep in range(layout.ep + 1, moe.experts + 1 if moe else 0):
        dp = lcm(layout.dp, ep)
        changes = {"ep": ep, "dp": dp}
        ranks = layout.tp * layout.cp * layout.pp * dp
        yield f"parallel.ep={ep} parallel.dp={dp} ({ranks} ranks)", _with(plan, "parallel", changes)


def _more_ranks(plan: Plan) -> Changes:
    """Yield larger grids on the same nodes, the grids with fewest ranks first.

    Among grids of equal size, data parallelism comes before stages, and stages before tensor parallelism, which
    communicates most.
    """
    layout = plan.layout
    grids = [
        (tp * layout.cp * pp * dp, tp, pp, dp)
        for tp in (layout.tp, *TP_SIZES)
        for pp in (layout.pp, *PP_SIZES)
        for dp in (layout.dp, 2 * layout.dp, 4 * layout.dp, 8 * layout.dp)
        if tp * layout.cp * pp * dp > layout.world_size
    ]
    for ranks, tp, pp, dp in sorted(set(grids)):
        text, config = _with_grid(plan, tp, pp, layout.ep, dp)
        yield f"{text} ({ranks} ranks)", config


def _other_grids(plan: Plan) -> Changes:
    """Yield the other grids of as many ranks: grids that split a model least come first, stages before tensors."""
    layout, moe = plan.layout, plan.config.model.moe
    experts = [ep for ep in range(1, moe.experts + 1) if moe.experts % ep == 0] if moe else [1]
    grids = [
        (tp * pp, tp, pp, ep)
        for tp in {layout.tp, *TP_SIZES}
        for pp in {layout.pp, *PP_SIZES}
        for ep in experts
        if tp <= layout.ranks_per_node and layout.world_size % (tp * layout.cp * pp) == 0
    ]
    for split, tp, pp, ep in sorted(grids):
        dp = layout.world_size // (split * layout.cp)
        if (tp, pp, ep) != (layout.tp, layout.pp, layout.ep):
            yield _with_grid(plan, tp, pp, ep, dp)
        if tp > 1 and not layout.sp:
            yield _with_grid(plan, tp, pp, ep, dp, sp=True)


def _with_grid(plan: Plan, tp: int, pp: int, ep: int, dp: int, sp: bool = False) -> tuple[str, RunConfig]:
    """Return the arguments for another grid, and the run's configuration in it."""
    layout = plan.layout
    # Experts under tensor parallelism need sequence parallelism.
    sp = tp > 1 and (sp or layout.sp or plan.config.model.moe is not None)
    text = f"parallel.tp={tp} parallel.pp={pp} parallel.dp={dp}"
    text += f" parallel.ep={ep}" if ep != layout.ep else ""
    text += f" parallel.sp={str(sp).lower()}" if sp != layout.sp else ""
    return text, _with(plan, "parallel", {"tp": tp, "pp": pp, "ep": ep, "dp": dp, "sp": sp})


def _with(plan: Plan, part: str, changes: Mapping[str, object]) -> RunConfig:
    """Return the run with changes in one part, and with the layout's number of replicas unless the changes set it."""
    return plan.config.changed("parallel", dp=plan.layout.dp).changed(part, **changes)


def check_preflight(config: RunConfig, layout: Layout) -> None:
    """Raise ConfigError where a run has nothing to compare before it, or no time for it."""
    if not config.faults.preflight_s:
        raise ConfigError("faults.preflight_s: 0 means no preflight: give it seconds, like 30")
    if layout.world_size == 1:
        raise ConfigError(
            f"{config.name} has one rank, which a preflight cannot compare: more devices, or parallel.dp=2 on a CPU"
        )
