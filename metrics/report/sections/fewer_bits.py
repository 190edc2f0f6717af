"""Weights of fewer bits in reports: what they cost beside the full width, and what quality they keep."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.analysis.fewer_bits import FULL, Cost, Quality, Widths, kept
from efficientbench.metrics.analysis.generation import Combination, by_combination, mean_of
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
NO_VERDICT = f"No verdict without the noise between measurements: {MIN_REPEATS} repeats of each width show it."
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
    absent: list[tuple[str, str]] = []
    for cost in costs:
        size = cost.made[0].disk_bytes
        absent += [(DISK, NOT_COUNTED)] if size is None else []
        absent += [(f"verdict of {cost.run} {cost.width}", cost.missing)] if cost.missing else []
        for combination, measured in sorted(by_combination(cost.made).items()):
            sizes = (f"{each:,}" for each in combination)
            verdicts = (_verdict(cost, combination, metric) for metric in VERDICTS)
            disk = number(size, ",.1f", 1e6)
            rows.append((cost.run, cost.width, *sizes, disk, *_figures(measured), *verdicts))
            absent += _absent(measured)
        missing = {name: why for each in cost.compared.values() for name, why in each.missing.items()}
        judged = ((name, title) for name, (title, _) in VERDICTS.items() if name in missing)
        absent += [(f"{title} of {cost.run} {cost.width}", missing[name]) for name, title in judged]
    unknown = any("no verdict" in cell for row in rows for cell in row[-len(VERDICTS) :])
    notes = [NO_VERDICT] if unknown else []
    figures = (titled(name)[0] for name in _FIGURES)
    titles = (title for title, _ in VERDICTS.values())
    header = ("run", "weights", "prompt", "batch", "new", DISK, READ, *figures, *titles)
    text_columns = (0, 1, len(header) - 2, len(header) - 1)
    return Table(header, rows, text_columns, COST_TITLE, (COST_NOTE, *notes, *each_reason(absent)))


def _absent(rows: Sequence[GenerationRow]) -> list[tuple[str, str]]:
    """Return the titles of figures that the rows of a combination lack, each with the reason."""
    names = {"bytes_read": READ, **{name: titled(name)[0] for name in _FIGURES}}
    lacking = ((title, row.why(name)) for row in rows for name, title in names.items() if row.value(name) is None)
    return [(title, why) for title, why in lacking if why is not None]


def _figures(rows: Sequence[GenerationRow]) -> list[str]:
    """Return the cells of one combination: MB that a decoding step reads for each token, and _FIGURES."""
    read = number(mean_of(rows, "bytes_read"), ",.1f", rows[0].batch * 1e6)
    return [read, *(number(mean_of(rows, name), form, titled(name)[1]) for name, form in _FIGURES.items())]


def _verdict(cost: Cost, combination: Combination, metric: str) -> str:
    """Return whether a width takes less of a figure than the full one does."""
    if cost.width == FULL:
        return ""
    ratio = cost.ratio(combination, metric)
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
