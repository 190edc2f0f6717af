"""What each stage of a chat model changed: its evaluations and those of the stage before, paired by item."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.analysis.paired import FOLDER, pair_stages
from efficientbench.metrics.report.sections.card import Pipeline
from efficientbench.metrics.report.sections.evaluations import P_VALUES, PAIRED, paired_row
from efficientbench.metrics.report.table import ABSENT, Table


def stage_changes(pipelines: Sequence[Pipeline]) -> Table:
    """Return a row for each task that an evaluated stage and the next evaluated one have in common."""
    header = ("pipeline", "stages", *PAIRED)
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for pipeline in pipelines:
        evaluated = [stage for stage in pipeline if any((stage.folder / FOLDER).glob("*.jsonl"))]
        try:
            changes = pair_stages([stage.folder for stage in evaluated])
        except MetricsError as error:
            rows.append((pipeline[-1].run, *[ABSENT] * (len(header) - 1)))
            notes.append(f"{ABSENT} of {pipeline[-1].run}: {plain_text(str(error))}")
            continue
        for before, after, change in zip(evaluated, evaluated[1:], changes, strict=False):
            stages = f"{before.name} → {after.name}"
            for each in change.paired:
                rows.append((pipeline[-1].run, stages, *paired_row(each)))
                if each.unpaired:
                    notes.append(f"{after.run}, {each.name}: {each.unpaired:,} items have no partner in {before.run}")
            notes += [f"{stages} of {pipeline[-1].run}, {plain_text(note)}" for note in change.notes]
    told = f"A: the stage before, B: the stage behind it. {P_VALUES} Each pipeline's are corrected apart."
    verdict = "A verdict is about these checkpoints: another seed of the same stages gives other differences."
    return Table(header, rows, (0, 1, 2, len(header) - 1), notes=(told, verdict, *dict.fromkeys(notes)))
