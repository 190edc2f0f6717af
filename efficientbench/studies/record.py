"""The files of a study's answer: `study.json`, whose schema is in docs/, `study.md` and `study.html`."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from pydantic import TypeAdapter

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.foreign import read_whole
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.report.html.page import rendered
from efficientbench.metrics.report.plots.line_plots import Line, Point, plot_lines
from efficientbench.metrics.report.plots.svg import Figure, Look, looks
from efficientbench.metrics.report.study_link import STUDY_HTML, STUDY_JSON
from efficientbench.studies.answer import Answer
from efficientbench.studies.cells import DECIDED
from efficientbench.studies.page import markdown, parts, summary, title
from efficientbench.studies.runs import Study
from efficientbench.studies.suite import StudySection

STUDY_MD = "study.md"
ANSWER = TypeAdapter(Answer)
"""Reads and writes `study.json`."""


def write_answer(answer: Answer, folder: Path) -> list[Path]:
    """Write the files of an answer into a study's folder, and return them; none before a run has made the folder.

    Raises MetricsError: a file cannot be written.
    """
    if not folder.is_dir():
        return []
    text = ANSWER.dump_json(answer, indent=1).decode() + "\n"
    texts = {STUDY_JSON: text, STUDY_MD: markdown(answer), STUDY_HTML: page(answer)}
    for name, content in texts.items():
        write_whole(folder / name, content)
    return [folder / name for name in texts]


def check_replaces(study: Study) -> None:
    """Raise ConfigError where the folder has an answer of more runs, with other keys or of another section."""
    try:
        before = ANSWER.validate_json(read_whole(study.folder / STUDY_JSON))
    except (OSError, ValueError):
        return
    # Under the same question the records themselves are gone.
    if before.complete <= study.complete or (not study.other_values and before.section == study.section):
        return
    kept, complete, runs = number_of(before.complete, "complete run"), study.complete, len(study.runs)
    if study.other_values:
        raise ConfigError(
            f"study: {study.folder} keeps its answer of {kept}, since {complete} of {runs} were trained with the keys "
            f"of this call: {_other_keys(study)}, or output=FOLDER for a study of its own"
        )
    raise ConfigError(
        f"study: {study.folder} keeps its answer of {kept}, since this call's study has {complete} of {runs}: "
        f"restore {_other_section(before.section, study.section)}, or output=FOLDER for a study of its own"
    )


def _other_keys(study: Study) -> str:
    """Return how to call for the runs that are there."""
    typed = [key for key in study.other_values if key not in DECIDED]
    # A model follows from its text's vocabulary, or from the file.
    typed = [key for key in typed if not key.startswith("model.")] or typed
    words = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in study.other_values.items()
        if key in typed
    ]
    if words:
        return f"give the keys {shlex.join(words)}"
    return f"the file's study sets another {', '.join(study.other_values)}: restore that"


def _other_section(before: StudySection, now: StudySection) -> str:
    """Return the words of an earlier section that are other ones now."""
    words, own = before.model_dump(mode="json"), now.model_dump(mode="json")
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in words.items() if value != own[key])


def page(answer: Answer) -> str:
    """Return the text of study.html."""
    look = looks(answer.section.ordered)
    figures = {"verdict": _differences(answer, look), "rates": _rates(answer, look)}
    shown = [(part, replace(part, figures=figures.get(part.anchor, ()))) for part in parts(answer)]
    now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}"
    footer = f"Made {now} UTC from the runs' records. All figures of this page are in study.json."
    return rendered(title(answer), summary(answer), shown, footer)


def _differences(answer: Answer, look: dict[str, Look]) -> list[Figure]:
    """Plot each variant's difference from the baseline, by size and at the target with its interval."""
    found = answer.findings
    if found is None:
        return []
    sizes = {run.cell.size: run.cell.parameters for run in answer.runs}
    at_target = {each.variant: each.difference for each in found.verdict.standings}
    lines = []
    for number, trend in enumerate(found.trends):
        points = [Point(sizes[size], value) for size, value in trend.by_size.items()]
        end = at_target[trend.variant]
        if end is not None:
            points.append(Point(answer.target.parameters, end.mean, end.low, end.high))
        lines.append(Line(number, trend.variant, look[trend.variant], tuple(points)))
    name = f"Loss minus {answer.section.baseline}'s, by size"
    note = "The last point is the target, with its 95 % interval; the others are means over the budgets and seeds."
    return [Figure(name, plot_lines(name, "N, training FLOPs per token / 6", "nats", lines, count), note)]


def _rates(answer: Answer, look: dict[str, Look]) -> list[Figure]:
    """Plot the losses of each search above its lowest, one plot a size."""
    figures = []
    for size in answer.section.search_sizes:
        lines = []
        for number, (variant, mark) in enumerate(look.items()):
            tried = answer.searches.get(f"{variant}_{size}", {})
            found = {rate: loss for rate, loss in tried.items() if loss is not None}
            if found:
                points = tuple(Point(rate, loss - min(found.values())) for rate, loss in found.items())
                lines.append(Line(number, variant, mark, points))
        if lines:
            name = f"Loss above the lowest, {size}"
            figures.append(Figure(name, plot_lines(name, "learning rate", "nats", lines)))
    return figures
