"""Weights of fewer bits in reports: what they cost beside the full width, and what quality they keep."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.analysis.fewer_bits import FULL, Cost, Quality, Widths, kept, mean_of
from efficientbench.metrics.analysis.generation import Combination
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, Ratio
from efficientbench.metrics.records.generation.generation import GenerationRow
from efficientbench.metrics.report.sections.evaluations import P_VALUES, PAIRED, paired_row
from efficientbench.metrics.report.sections.generation import titled
from efficientbench.metrics.report.table import ABSENT, Table, each_reason, number

TITLE = "Fewer bits"
COST_TITLE = "What they cost here"
QUALITY_TITLE = "What quality they keep"
DISK, READ = "MB on disk", "MB read a token"
NOT_COUNTED = "it was measured before this figure was counted"
VERDICTS = {"decode_time_s": ("time of a token", "faster"), "decode_energy_j_per_token": ("J of a token", "cheaper")}
"""Figure of decoding → the title of its verdict, and the word for less of it."""
COST_NOTE = (
    "A verdict is of a width over the full one. On disk: all weights by formula, packed, with scales and offsets. "
    "Read: by a decoding step, over its batch. Fewer bits are not faster by themselves; where it says so, they are "
    "not here."
)
MCR_NOTE = (
    "A: full width, B: this one. MCR, EfficientLLM's model compression rate: bytes on disk before over after, times "
    "the quality kept, which of a loss is before over after."
)


def bits_tables(widths: Widths) -> list[Table]:
    """Return the table of costs, and that of qualities; those without rows are left out."""
    return [table for table in (_costs(widths.costs), _qualities(widths.qualities)) if table]


_FIGURES = {
    "cache_bytes": ",.2f",
    "ttft_s_p50": ",.1f",
    "decode_tokens_per_s": ",.1f",
    "decode_energy_j_per_token": ".3g",
}
"""Figure of a row → its format; the titles are those of the table of generation."""


def _costs(costs: Sequence[Cost]) -> Table:
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    absent: list[tuple[str, str]] = []
    for cost in costs:
        for width, records in cost.made.items():
            size = records[0].disk_bytes
            disk = number(None if size is None else size / 1e6, ",.1f")
            absent += [(DISK, NOT_COUNTED)] if size is None else []
            for combination, measured in sorted(cost.rows(width).items()):
                sizes = (f"{each:,}" for each in combination)
                verdicts = (_verdict(cost, width, combination, metric) for metric in VERDICTS)
                rows.append((cost.run, width, *sizes, disk, *_figures(measured), *verdicts))
                absent += _absent(measured)
        absent += [(f"verdict of {cost.run} {width}", why) for width, why in cost.missing.items()]
        for width, compared in cost.compared.items():
            missing = {name: why for each in compared.values() for name, why in each.missing.items()}
            titles = {name: title for name, (title, _) in VERDICTS.items() if name in missing}
            absent += [(f"{title} of {cost.run} {width}", missing[name]) for name, title in titles.items()]
    if any("no verdict" in cell for row in rows for cell in row[-len(VERDICTS) :]):
        notes.append(f"No verdict without the noise between measurements: {MIN_REPEATS} repeats of each width show it.")
    figures = (titled(name)[0] for name in _FIGURES)
    judged = (title for title, _ in VERDICTS.values())
    header = ("run", "weights", "prompt", "batch", "new", DISK, READ, *figures, *judged)
    text_columns = (0, 1, len(header) - 2, len(header) - 1)
    return Table(header, rows, text_columns, COST_TITLE, (COST_NOTE, *notes, *each_reason(absent)))


def _absent(rows: Sequence[GenerationRow]) -> list[tuple[str, str]]:
    """Return the titles of figures that the rows of a combination lack, each with the reason."""
    names = {"bytes_read": READ, **{name: titled(name)[0] for name in _FIGURES}}
    lacking = ((title, row.why(name)) for row in rows for name, title in names.items() if row.value(name) is None)
    return [(title, why) for title, why in lacking if why is not None]


def _figures(rows: Sequence[GenerationRow]) -> list[str]:
    """Return the cells of one combination: MB that a decoding step reads for each token, and _FIGURES."""
    read = mean_of(rows, "bytes_read")
    cells = [number(None if read is None else read / rows[0].batch / 1e6, ",.1f")]
    for name, form in _FIGURES.items():
        value, (_, unit) = mean_of(rows, name), titled(name)
        cells.append(number(None if value is None else value / unit, form))
    return cells


def _verdict(cost: Cost, width: str, combination: Combination, metric: str) -> str:
    """Return whether a width takes less of a figure than the full one does."""
    if width == FULL:
        return ""
    ratio = cost.ratio(width, combination, metric)
    return ABSENT if ratio is None else told(ratio, VERDICTS[metric][1])


def told(ratio: Ratio, less: str) -> str:
    """Return the verdict of a ratio in words; `less` is the word for a ratio below 1."""
    if ratio.measurable is None:
        return f"{ratio.verdict}; by the figures {ratio.change}"
    return f"{less if ratio.measurable and ratio.ratio < 1 else f'not {less} here'}: {ratio.verdict}"


def _qualities(qualities: Sequence[Quality]) -> Table:
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for quality in qualities:
        for paired in quality.evaluations.paired:
            compression = number(quality.compression(paired), ".3f")
            cells = (*paired_row(paired), number(kept(paired), ".1%"), compression)
            rows.append((quality.run, quality.width, *cells))
        if quality.disk_bytes is None:
            notes.append(
                f"{ABSENT} MCR of {quality.run} {quality.width}: generate --measure counts the bytes of both widths"
            )
        notes += [f"{quality.run} {quality.width}, {plain_text(note)}" for note in quality.evaluations.notes]
    header = ("run", "weights", *PAIRED, "kept", "MCR")
    told_of = (MCR_NOTE, f"{P_VALUES} Each run's widths are corrected together.", *dict.fromkeys(notes))
    return Table(header, rows, (0, 1, 2, len(header) - 3), QUALITY_TITLE, told_of)
