"""Evaluations: the figures of all runs of a folder, and two runs paired by item."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from efficientbench.metrics.analysis.paired import CORE, FOLDER, Evaluations, Paired
from efficientbench.metrics.foreign import parse_json, plain_text, plain_texts, read_whole
from efficientbench.metrics.records.record import SKIPPED_FOLDERS
from efficientbench.metrics.report.table import ABSENT, Table, number, print_table


def evaluations_table(folder: Path) -> Table:
    """Return a row for each figure of each evaluation below a folder, without files that are none."""
    rows: list[tuple[str, ...]] = []
    notes: dict[str, None] = {}
    for path in sorted(folder.rglob(f"{FOLDER}/*.json")):
        run = path.parent.parent.relative_to(folder)
        if set(SKIPPED_FOLDERS) & set(run.parts):
            continue
        try:
            content = plain_texts(parse_json(read_whole(path)))
            step, items = f"{int(content['step']):,}", f"{int(content['items']):,}"
            figures = {str(name): None if value is None else float(value) for name, value in content["figures"].items()}
            reasons = {str(name): str(reason) for name, reason in content["unavailable"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        task = plain_text(path.stem)
        for name, value in figures.items():
            # Most tasks of CORE are not at hand in a small bundle: CORE's own reason names them.
            if value is None and task == CORE != name:
                continue
            rows.append((plain_text(str(run)), task, name, number(value, ".4g"), items, step))
            if value is None:
                notes[f"{ABSENT} {name}: {reasons.get(name, 'no reason is given')}"] = None
    return Table(("run", "task", "figure", "value", "items", "step"), rows, (0, 1, 2), "Evaluations", tuple(notes))


def print_evaluations(found: Evaluations, console: Console) -> None:
    """Print the figures of two runs over the same items; nothing where there is none."""
    if not found.paired and not found.notes:
        return
    console.print()
    if found.paired:
        console.print(Text("Evaluations, over the items that both were given, paired by item:"))
        header = ("task", "items", "A", "B", "B − A", "95 %", "p", "verdict")
        rows = [_row(each) for each in found.paired]
        print_table(Table(header, rows, text_columns=(0, 7)), console, gap=1)
        lines = (
            "p: exact McNemar test; of losses and of several samples Student's t over the items; all together by "
            "Holm's correction.",
            "A verdict is about these two checkpoints. Between runs of another seed there are differences too.",
        )
        console.print(Text("\n".join(lines)))
    for each in found.paired:
        if each.unpaired:
            task = each.name.partition(":")[0]
            console.print(Text(f"{task}: {each.unpaired:,} items have no partner: they were given otherwise"))
    for note in found.notes:
        console.print(Text(plain_text(note)))


def _row(each: Paired) -> tuple[str, ...]:
    digits = ".4f" if each.unit == "nats" else ".1%"
    figures = [format(value, digits) for value in (each.first, each.second)]
    signed = [format(value, f"+{digits}") for value in (each.difference, each.low, each.high)]
    interval = f"{signed[1]} to {signed[2]}"
    return (each.name, f"{each.items:,}", *figures, signed[0], interval, f"{each.p:.2g}", each.verdict)
