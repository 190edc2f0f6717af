"""The sections that are text and tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.columns import DESCRIPTIONS, names
from efficientbench.metrics.report.environment import environments
from efficientbench.metrics.report.failures import HEADER as FAILURES_HEADER
from efficientbench.metrics.report.failures import FailedRun
from efficientbench.metrics.report.headline import ABSENT, SHOWN, absences, cell, notes, relative_interval
from efficientbench.metrics.report.html.plots import Run
from efficientbench.metrics.report.html.svg import mark, svg
from efficientbench.metrics.report.noise import noise_floors
from efficientbench.metrics.report.paper import PaperTable, paper_tables, verdict
from efficientbench.metrics.report.quality import HEADER, cost_tables


def summary(records: Sequence[RunRecord]) -> str:
    """What the report is of, in a line, and what must be known before reading on."""
    states = {state: sum(record.status == state for record in records) for state in ("completed", "stopped", "failed")}
    told = ", ".join(f"{count} {state}" for state, count in states.items() if count)
    devices = dict.fromkeys(f"{record.devices} × {record.device_name}" for record in records)
    shown = list(devices)[:4] + (["…"] if len(devices) > 4 else [])
    days = sorted(record.started_at[:10] for record in records)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    line = f"{len(records):,} runs ({told}) on {', '.join(shown)}, {when}"
    warnings = "".join(f'<p class="warning">{escape(note)}</p>' for note in notes(records))
    return f'<p class="lead">{escape(line)}</p>{warnings}'


def results(runs: Sequence[Run]) -> str:
    """The figures of all runs; a click on a heading sorts by it."""
    reasons = {absence.reason: place for place, absence in enumerate(absences([run.record for run in runs]), start=1)}
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button" title="{escape(_meaning(column.metric))}">'
        f"{escape(column.title)}</button></th>"
        for column in SHOWN
    )
    lines = [f'<tr><th scope="col" aria-sort="none"><button type="button">run</button></th>{head}</tr>']
    body = []
    for run in runs:
        look = svg(12, 12, run.record.variant, [mark(6, 6, run.look, "point on", 4.2)])
        cells = [f'<th scope="row" data-v="{escape(run.name)}">{look}{escape(run.name)}</th>']
        for column in SHOWN:
            value = getattr(run.record, column.metric)
            if value is None:
                reason = run.record.unavailable[column.metric]
                place = reasons[reason]
                cells.append(
                    f'<td class="na" title="{escape(reason)}">n/a<a href="#na-{place}"><sup>{place}</sup></a></td>'
                )
            else:
                order = relative_interval(run.record) if column.metric == "al_s_ci_high" else value
                cells.append(f'<td data-v="{order!r}">{escape(cell(column, run.record))}</td>')
        body.append(f'<tr class="m" data-run="{run.number}">{"".join(cells)}</tr>')
    table = f"<table class='sortable'><thead>{''.join(lines)}</thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Results">{table}</div>'


def _meaning(metric: str) -> str:
    column = DESCRIPTIONS[metric]
    return f"{metric}: {column.meaning}" + (f" ({column.unit})" if column.unit else "")


def settings(runs: Sequence[Run]) -> str:
    """What was run: model, budget, layout, kernels."""
    header = (
        *("run", "status", "parameters", "active", "dtype", "sequence", "micro batch", "global batch", "layout"),
        *("steps", "tokens", "keys/query", "seed", "duration"),
    )
    rows = []
    for run in runs:
        record = run.record
        layout = " ".join(
            f"{axis}{size}" for axis in ("tp", "pp", "dp", "cp", "ep") if (size := getattr(record, axis)) > 1
        )
        keys = ABSENT if record.keys_read_per_query is None else f"{record.keys_read_per_query:,.0f}"
        if record.dense_keys_per_query is not None:
            keys += f" of {record.dense_keys_per_query:,.0f}"
        rows.append(
            (
                *(run.name, record.status, f"{record.parameters:,}", f"{record.parameters_active:,}", record.dtype),
                *(f"{record.seq_len:,}", f"{record.micro_batch_size:,}", f"{record.global_batch_size:,}"),
                *(layout or "1 rank", f"{record.steps_measured:,}", f"{record.tokens:,}", keys, str(record.seed)),
                f"{record.duration_s:,.0f} s",
            )
        )
    return _table(header, rows, words=(0, 1, 4, 8))


def quality(records: Sequence[RunRecord]) -> str:
    """Tokens, seconds and joules to the loss that all comparable runs got to."""
    parts = []
    for costs in cost_tables(records):
        reasons = "".join(f'<p class="note">{ABSENT}: {escape(reason)}</p>' for reason in costs.reasons)
        parts.append(f"<h3>{escape(costs.title)}</h3>{_table(HEADER, costs.rows, words=(0,))}{reasons}")
    told = "<p>In brackets the 95 % interval, from the validation loss's standard error; ?: not seen there.</p>"
    return "".join([*parts, told]) if parts else ""


def noise(records: Sequence[RunRecord]) -> str:
    """What identical models differ by."""
    return "".join(f"<p>{escape(str(floor))}</p>" for floor in noise_floors(records))


def paper(records: Sequence[RunRecord]) -> str:
    """The paper's tables, with both rankings."""
    return "".join(_paper_table(table) for table in paper_tables(records))


def _paper_table(table: PaperTable) -> str:
    told = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict(table))
    return f"<h3>{escape(table.title)}</h3>{_table(table.header, table.rows, words=(0, 1))}{told}"


def where(records: Sequence[RunRecord]) -> str:
    """Hosts, devices, packages, kernels: once for all runs that share them."""
    blocks = []
    for found in environments(records):
        facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in found.facts.items())
        blocks.append(f'<div class="card"><h3>{escape(", ".join(found.runs))}</h3><dl>{facts}</dl></div>')
    return f'<div class="cards">{"".join(blocks)}</div>'


def absent(records: Sequence[RunRecord]) -> str:
    """Each reason once, numbered as in the table."""
    items = []
    for place, absence in enumerate(absences(records), start=1):
        runs = "all runs" if absence.everywhere else ", ".join(absence.runs)
        items.append(
            f'<li id="na-{place}">{escape(absence.reason)} <span class="note">{escape(", ".join(absence.titles))}: '
            f"{escape(runs)}</span></li>"
        )
    return f"<ol>{''.join(items)}</ol>" if items else ""


def failed(failures: Sequence[FailedRun]) -> str:
    """Runs that failed, were stopped, or could not begin, with their reasons."""
    return _table(FAILURES_HEADER, [failure.row for failure in failures], words=(0, 1, 3)) if failures else ""


def damaged(messages: Sequence[str]) -> str:
    """Files that are no records."""
    return f"<ul>{''.join(f'<li>{escape(message)}</li>' for message in messages)}</ul>" if messages else ""


def glossary() -> str:
    """The columns of report.csv."""
    rows = [(column, DESCRIPTIONS[column].unit, DESCRIPTIONS[column].meaning) for column in names()]
    table = _table(("column of report.csv", "unit", "meaning"), rows, words=(0, 1, 2))
    return f"<details><summary>{len(rows)} columns</summary>{table}</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int]) -> str:
    """A table whose columns in `words` are text, the others figures."""
    head = "".join(f'<th scope="col"{_side(at, words)}>{escape(title)}</th>' for at, title in enumerate(header))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(content)}</th>' if at == 0 else f"<td{_side(at, words)}>{escape(content)}</td>"
            for at, content in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _side(at: int, words: Sequence[int]) -> str:
    return ' class="word"' if at in words else ""
