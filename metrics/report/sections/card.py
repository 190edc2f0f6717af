"""The report card: what each stage of a chat model learned, how good it is, and what it cost.

Stages are runs, each of which began with the weights of the stage before (`init.run`): base, mid-training, SFT, RL.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.analysis.generation import GENERATION_CONDITIONS, combination_of, measured_rows
from efficientbench.metrics.analysis.paired import CORE
from efficientbench.metrics.analysis.stages import (
    before,
    device_hours,
    may_begin_with,
    part_before,
    training_device_hours,
    training_energy_j,
)
from efficientbench.metrics.formulas.student import half_interval_95
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.records.generation.generation import GenerationRecord, GenerationRow, generation_of
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, read_record
from efficientbench.metrics.records.stored import current_files
from efficientbench.metrics.report.headline import SMOKE_NOTE
from efficientbench.metrics.report.sections.environments import listed_environments
from efficientbench.metrics.report.sections.generation import shown_cell, titled
from efficientbench.metrics.report.table import ABSENT, Table, bullets, markdown_table

SHOWN = ("ttft_s_p50", "decode_tokens_per_s", "decode_energy_j_per_token")
"""Figures of generation that the card shows."""


@dataclass(frozen=True)
class Served:
    """The cells of generation in a report card: time to first token, speed and energy of answers.

    `generate --measure` measures several combinations of prompt, batch and new tokens. The card shows one combination
    that all measured models have, under the same conditions, so that its rows compare.
    """

    rows: Mapping[str, GenerationRow] = field(default_factory=dict)
    """Run → its row of the shown combination; runs without one have n/a."""
    notes: tuple[str, ...] = ()
    """Which combination is shown, and why cells are n/a."""
    header: tuple[str, ...] = ()
    """Titles of the columns; empty where nothing was measured."""

    @classmethod
    def of(cls, generations: Mapping[str, GenerationRecord | None]) -> Served:
        """Choose a combination that all measured models have: the smallest batch, then the longest prompt.

        Args:
            generations: run → its record of generation; None if there is none.
        """
        measured = {
            run: {combination_of(row): row for row in measured_rows([each])}
            for run, each in generations.items()
            if each is not None
        }
        if not measured:
            return cls(notes=("No generation was measured: efficientbench generate RUN --measure does so.",))
        header = tuple(titled(name)[0] for name in SHOWN)
        without = [run for run in generations if run not in measured]
        notes = [f"{ABSENT} {', '.join(header)} of {', '.join(without)}: not measured."] if without else []
        common = set.intersection(*map(set, measured.values()))
        why = None if common else "no combination of prompt, batch and new tokens was measured of all of them"
        for condition, read in GENERATION_CONDITIONS.items():
            texts = {run: read(each) for run, each in generations.items() if each is not None}
            if len(set(texts.values())) > 1:
                listed = ", ".join(f"{run} {text}" for run, text in texts.items())
                why = f"measured under different conditions, {condition}: {listed}"
        if why is not None:
            return cls(notes=(*notes, f"{ABSENT} {', '.join(header)} of {', '.join(measured)}: {why}."), header=header)
        chosen = min(common, key=lambda each: (each[1], -each[0], -each[2]))
        prompt, batch, new = chosen
        notes.insert(0, f"Generation: prompts of {prompt:,} tokens, batch {batch:,}, {new:,} new tokens.")
        rows = {run: found[chosen] for run, found in measured.items()}
        for run, row in rows.items():
            for name, title in zip(SHOWN, header, strict=True):
                if row.value(name) is None:
                    notes.append(f"{ABSENT} {title} of {run}: {row.why(name)}")
        return cls(rows, tuple(notes), header)

    def cells(self, run: str) -> list[str]:
        """Return a run's cells below `header`."""
        row = self.rows.get(run)
        return [ABSENT] * len(self.header) if row is None else [shown_cell(name, row) for name in SHOWN]


CARD_NAME = "report_card.md"
STAGE_CHANGES = "What each stage changed, on the same items"
"""Title of the table of evaluations that are paired over stages."""
BASE, MID, SFT, RL = STAGES = ("base", "mid", "SFT", "RL")
_OF_OBJECTIVE = {"sft": SFT, "rl": RL}
ALL = "all"
"""Name of the row with a pipeline's sums."""


@dataclass(frozen=True)
class Stage:
    """One run of a pipeline."""

    run: str
    """The run's folder, relative to the reported folder."""
    folder: Path
    record: RunRecord
    generation: GenerationRecord | None
    """The record of its model's generation; None if not measured."""

    @property
    def name(self) -> str:
        """The stage's name, one of `STAGES`."""
        objective = str(self.record.section("training").get("objective"))
        return _OF_OBJECTIVE.get(objective, BASE if before(self.record) is None or self.record.branched_after else MID)


Pipeline = Sequence[Stage]
"""Stages in order; no other run begins with the weights of the last one."""


def load_pipelines(folder: Path) -> list[Pipeline]:
    """Return the pipelines of two stages or more below a folder; skip records that cannot be read."""
    stages: dict[str, Stage] = {}
    for path in current_files(folder, RECORD_NAME):
        with contextlib.suppress(MetricsError):
            run = str(path.parent.relative_to(folder))
            stages[run] = Stage(plain_text(run), path.parent, read_record(path), generation_of(path.parent))
    earlier = {run: _before(stage, folder, stages) for run, stage in stages.items()}
    chains = [_chain(run, earlier) for run in stages if run not in earlier.values()]
    found = [[stages[run] for run in chain] for chain in chains]
    # A trunk and its branch are no two stages by themselves.
    return [each for each in found if len(each) > 1 and any(stage.name != BASE for stage in each)]


def _before(stage: Stage, folder: Path, runs: Iterable[str]) -> str | None:
    """Return the run whose weights a stage began with; None if it is not below the folder.

    It is the run whose folder the recorded path ends with, so that all folders may be moved together. A checkpoint with
    another SHA-256 than the recorded one is that of another run of this name, or of a later training.
    """
    parts = PurePath(before(stage.record) or "").parts
    for run in sorted(runs, key=len, reverse=True):
        end = PurePath(run).parts
        if end and parts[-len(end) :] == end and may_begin_with(stage.record, folder / run):
            return run
    return None


def _chain(run: str, earlier: Mapping[str, str | None]) -> list[str]:
    """Return a run and the runs that it descends from, the earliest first."""
    chain = [run]
    while (found := earlier.get(chain[0])) is not None and found not in chain:
        chain.insert(0, found)
    return chain


@dataclass(frozen=True)
class _Scores:
    """The first figure of each task for each run of the pipelines, with interval, number of items and limit."""

    values: dict[str, dict[str, str]]
    """Run → task → cell."""
    tasks: list[str]
    reasons: list[str]
    """Why scores are n/a."""

    @classmethod
    def of(cls, evaluations: Table, runs: Collection[str]) -> _Scores:
        """Return the scores of these runs."""
        values: dict[str, dict[str, str]] = {}
        absent: dict[str, None] = {}
        for run, task, figure, value, interval, items, limit, _ in evaluations.rows:
            if run in runs and task not in values.get(run, {}) and (figure == CORE or task != CORE):
                about = [f"({interval})"] * bool(interval) + [f"n {items}"] + [f"limit {limit}"] * bool(limit)
                values.setdefault(run, {})[task] = ABSENT if value == ABSENT else " ".join([value, *about])
                if value == ABSENT:
                    absent[f"{ABSENT} {figure}"] = None
        tasks = list(dict.fromkeys(task for found in values.values() for task in found))
        return cls(values, tasks, [note for note in evaluations.notes if note.partition(":")[0] in absent])


def card_table(pipelines: Sequence[Pipeline], evaluations: Table, price_per_hour: float | None) -> Table:
    """Return a row for each stage of each pipeline, and one for the pipeline's sums.

    Args:
        pipelines: the pipelines, from `load_pipelines`.
        evaluations: the table of `evaluations_table`; the first figure of each task is shown.
        price_per_hour: the price of one device hour; None for no column of costs.
    """
    stages = {stage.run: stage for pipeline in pipelines for stage in pipeline}
    scores = _Scores.of(evaluations, stages)
    served = Served.of({run: stage.generation for run, stage in stages.items()})
    costs = (*COSTS, *(["cost"] if price_per_hour is not None else []))
    header = ("pipeline", "stage", "data", "tokens", "loss", *scores.tasks, *served.header, *costs)
    rows: list[tuple[str, ...]] = []
    for pipeline in pipelines:
        title = pipeline[-1].run
        for name in STAGES:
            of_name = [stage for stage in pipeline if stage.name == name]
            for stage in of_name:
                ended = "" if stage.record.status == "completed" else f" ({stage.record.status})"
                own = [scores.values.get(stage.run, {}).get(task, ABSENT) for task in scores.tasks]
                spent = _costs([stage.record], price_per_hour)
                rows.append((title, name + ended, *_learned(stage.record), *own, *served.cells(stage.run), *spent))
            if not of_name:
                rows.append((title, name, *[ABSENT] * (len(header) - 2)))
        # Without its first runs the cost of a pipeline is not known.
        whole = _parts(pipeline) if before(pipeline[0].record) is None else []
        spent = _costs(whole, price_per_hour)
        rows.append((title, ALL, *[""] * (3 + len(scores.tasks) + len(served.header)), *spent))
    notes = (*_notes(pipelines, scores, price_per_hour), *served.notes)
    return Table(header, rows, (0, 1, 2), notes=notes)


def _parts(pipeline: Pipeline) -> list[RunRecord]:
    """Return the records of what the last stage has taken of each run; none where a part's size is not known."""
    records = [stage.record for stage in pipeline]
    try:
        return [*(part_before(*both) for both in pairwise(records)), records[-1]]
    except MetricsError:
        return []


def _learned(record: RunRecord) -> tuple[str, str, str]:
    """Return the cells of data, tokens and loss."""
    data = ", ".join(f"{source.source} ({count(source.tokens)})" for source in record.data or ())
    if record.reinforcement is not None:
        # The corpora of such a run are for validation alone.
        data = f"answers to {record.reinforcement.questions:,} questions"
    tokens = ABSENT if record.tokens_trained is None else count(record.tokens_trained)
    if record.validation_loss is None:
        return data or ABSENT, tokens, ABSENT
    margin = half_interval_95(record.validation_loss_se, record.validation_loss_se_values)
    return data or ABSENT, tokens, f"{record.validation_loss:.4f}" + (f" ± {margin:.4f}" if margin else "")


COSTS: dict[str, Callable[[RunRecord], float]] = {
    "hours": lambda record: device_hours(record) / record.devices,
    "device hours": device_hours,
    "training device hours": training_device_hours,
    "training kJ": lambda record: training_energy_j(record) / 1000,
}
"""Costs that the card shows; they raise MetricsError where one is not known."""


def _costs(records: Sequence[RunRecord], price_per_hour: float | None) -> list[str]:
    """Return the cells of the runs' summed costs and, with a price, of what their device hours cost."""
    sums = [_sum(records, cost) for cost in COSTS.values()]
    whole = sums[list(COSTS).index("device hours")]
    priced = [] if price_per_hour is None else [None if whole is None else whole * price_per_hour]
    return [_cell(value) for value in (*sums, *priced)]


def _sum(records: Sequence[RunRecord], cost: Callable[[RunRecord], float]) -> float | None:
    """Return the summed cost; None where that of a run is not known, or where there are none."""
    try:
        return math.fsum(map(cost, records)) if records else None
    except MetricsError:
        return None


def _cell(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _notes(pipelines: Sequence[Pipeline], scores: _Scores, price: float | None) -> tuple[str, ...]:
    """Return how to read the table, and the reason for each n/a."""
    notes = [
        "Losses are nats per token with a 95 % interval, each over the text of its own stage: compare them within a "
        "stage.",
        "Hours and device hours are whole runs, of all attempts, set-up and evaluation included. Training device hours "
        "and kJ are both of the training steps alone: of all of them, at the measured ones' rates, RL's with the "
        "answers that it samples before them.",
    ]
    if scores.tasks:
        notes.append(
            "Scores: in brackets the 95 % interval over items (Wilson's where each is right or wrong), n the items, "
            "limit the most items that --limit allowed, of CORE of each of its tasks. Intervals that overlap may hide "
            f"a difference on the same items: see {STAGE_CHANGES!r}."
        )
    no_price = "No cost: it needs the price of a device and hour (--price-per-hour X)."
    notes.append(no_price if price is None else f"Cost: {price:,.3g} for a device and hour.")
    smoke = [pipeline[-1].run for pipeline in pipelines if any(stage.record.smoke for stage in pipeline)]
    if smoke:
        notes.append(f"{', '.join(smoke)} {SMOKE_NOTE}")
    for pipeline in pipelines:
        last, stages = pipeline[-1].run, {stage.name for stage in pipeline}
        missing = [name for name in STAGES if name not in stages]
        first = pipeline[0]
        if (named := before(first.record)) is not None:
            notes.append(
                f"{first.run} began with {plain_text(named)}, which is not below this folder, or has changed since: "
                f"the sums of {last} are not known."
            )
        if missing:
            notes.append(f"{ABSENT} {', '.join(missing)} of {last}: no such run belongs to it.")
        for stage in pipeline:
            notes += _stage_notes(stage, scores)
    return tuple(dict.fromkeys([*notes, *scores.reasons]))


def _stage_notes(stage: Stage, scores: _Scores) -> list[str]:
    """Return the notes on a stage's row."""
    record, notes = stage.record, []
    if record.resumed_after_steps:
        after = ", ".join(map(str, record.resumed_after_steps))
        notes.append(f"{stage.run} was resumed after step {after}: its training costs are at its last attempt's rates.")
    learned = record.reinforcement
    if learned is not None and learned.reward_first is not None and learned.reward_last is not None:
        notes.append(
            f"{stage.run}: mean reward {learned.reward_first:.3g} in its first ten steps, {learned.reward_last:.3g} in "
            f"its last ten; {learned.without_signal:,} of {learned.questions:,} questions taught nothing, since their "
            "answers all had one reward."
        )
    unscored = [task for task in scores.tasks if task not in scores.values.get(stage.run, {})]
    if unscored:
        notes.append(f"{ABSENT} {', '.join(unscored)} of {stage.run}: not evaluated.")
    for title, figure in (("tokens", "tokens_trained"), ("loss", "validation_loss")):
        if getattr(record, figure) is None:
            notes.append(f"{ABSENT} {title} of {stage.run}: {record.unavailable[figure]}")
    for title, cost in COSTS.items():
        try:
            cost(record)
        except MetricsError as error:
            notes.append(f"{ABSENT} {title} of {stage.run}: {str(error).removeprefix(f'{record.run}: ')}")
    return notes


def card_markdown(table: Table, changes: Table, pipelines: Sequence[Pipeline]) -> str:
    """Return the text of report_card.md: the table, what each stage changed, and the environments of its runs."""
    records = {stage.run: stage.record for pipeline in pipelines for stage in pipeline}
    where = listed_environments(list(records.values()))
    paired = [f"## {STAGE_CHANGES}", markdown_table(changes), bullets(changes.notes)] if changes else []
    parts = ["# Report card", markdown_table(table), bullets(table.notes), *paired, "## Environment", *where]
    return "\n\n".join(parts) + "\n"
