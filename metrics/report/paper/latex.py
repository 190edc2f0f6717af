"""The answers as LaTeX: one table a set, for papers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from efficientbench.metrics.analysis.rivals import QUESTIONS
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.records.record import FIGURES
from efficientbench.metrics.report.answers import RULE
from efficientbench.metrics.report.headline import HEADLINE, cell
from efficientbench.metrics.report.suites import Suite
from efficientbench.metrics.report.table import ABSENT

_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"},
    **{"±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", "–": "--", "−": "$-$"},
}
"""Character of a record's text → the LaTeX that prints it."""
_ARROWS = {"lower": r"$\downarrow$", "higher": r"$\uparrow$", None: ""}


def latex_tables(suites: Sequence[Suite], columns: Sequence[str] = QUESTIONS) -> str:
    """Return a table for each set with these figures of HEADLINE; the tables need the package booktabs.

    Bold marks the best figure, and those that differ from it by no more than noise, if any row is worse by more.
    """
    return "\n".join(["% Needs \\usepackage{booktabs}.", *(_table(suite, columns) for suite in suites)])


def latex(content: str) -> str:
    """Return the text in one line, escaped for LaTeX."""
    return re.sub(r"[^\w\s]|_", lambda found: _SIGNS.get(found[0], found[0]), " ".join(content.split()))


def _table(suite: Suite, columns: Sequence[str]) -> str:
    bold = {metric: _best(suite, metric) if metric in QUESTIONS else set() for metric in columns}
    titles = [f"{latex(HEADLINE[metric].title)} {_ARROWS[FIGURES[metric].better]}" for metric in columns]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(suite.title)}. {latex(_about(suite))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        rf"{' & '.join(['', *titles])} \\",
        r"\midrule",
    ]
    for place, row in enumerate(suite.rows):
        figures = [latex(cell(metric, row.record)) for metric in columns]
        shown = [
            rf"\textbf{{{figure}}}" if place in bold[metric] else figure
            for metric, figure in zip(columns, figures, strict=True)
        ]
        lines.append(rf"{' & '.join([latex(row.marked), *shown])} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _best(suite: Suite, metric: str) -> set[int]:
    """Return the best row and the rows level with it; none where no row is worse by more than noise."""
    standing = suite.rivals.standing(metric)
    return {standing.best, *standing.level} if standing.worse and standing.best is not None else set()


def _about(suite: Suite) -> str:
    """Return the caption: where the rows ran, what is printed bold, and how often each ran."""
    first = suite.rows[0].record
    repeats = {row.record.repeats for row in suite.rows}
    runs = f"{min(repeats)} to {max(repeats)}" if len(repeats) > 1 else f"{max(repeats)}"
    where = f"{first.devices} × {first.device_name}, {first.dtype or 'dtype n/a'}, sequence {first.seq_len:,}"
    spread = ", ± their standard deviation" if max(repeats) > 1 else ""
    scaled = f"Scaled-down models of {_parameters(suite)} parameters. " if first.smoke else ""
    return f"{scaled}On {where}; runs a row: {runs}{spread}. Bold: the best, and what does not differ from it. {RULE}"


def _parameters(suite: Suite) -> str:
    """Return the fewest and the most parameters of a set's models."""
    known = [row.record.parameters for row in suite.rows if row.record.parameters is not None]
    return " to ".join(dict.fromkeys(map(count, (min(known), max(known))))) if known else ABSENT
