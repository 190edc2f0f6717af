"""The map of models, widths, contexts and batches: the least of each place, and where lines cross, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.generated import generation, phase, row

from efficientbench.metrics.analysis.crossings import crossings, lines_of
from efficientbench.metrics.records.generation.generation import GenerationRecord, write_generation
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.sections.crossings import NO_CROSSING, crossing_tables

PROMPTS = (128, 960, 4032)
"""With 64 new tokens each: contexts of 192, 1,024 and 4,096."""


def line(variant: str, times_s: tuple[float, ...], width: str = "none", joules: float = 3.0) -> GenerationRecord:
    """A model whose step takes these times at PROMPTS, batch 8; its 95 % interval is 1 % to both sides."""
    rows = [
        row(variant, prompt, 8, decode=phase(time_s, 8, joules))
        for prompt, time_s in zip(PROMPTS, times_s, strict=True)
    ]
    return generation(variant, quantization=width, rows=rows)


RECORDS = [
    line("gqa", (0.010, 0.020, 0.080)),
    line("mqa", (0.020, 0.0201, 0.040)),
    line("gqa", (0.030, 0.040, 0.060), "int8", joules=2.0),
]


def test_lines_cross_where_their_order_changes_beyond_the_intervals() -> None:
    [lines] = lines_of(RECORDS).values()
    found = {(each.before, each.after): each for each in crossings(lines)}
    assert set(found) == {("gqa_1.5B", "mqa_1.5B"), ("gqa_1.5B", "gqa_1.5B int8")}
    architectures = found["gqa_1.5B", "mqa_1.5B"]
    # At 1,024 tokens the intervals overlap, so that the order is known at the ends alone.
    assert (architectures.axis, architectures.low, architectures.high) == ("context", 192, 4096)
    assert architectures.meeting == pytest.approx(192 * (4096 / 192) ** 0.5)
    assert found["gqa_1.5B", "gqa_1.5B int8"].low == 1024


def test_lines_that_differ_in_model_and_width_are_not_compared() -> None:
    records = [RECORDS[1], line("gqa", (0.010, 0.030, 0.080), "int8")]
    [lines] = lines_of(records).values()
    assert crossings(lines) == []
    _, crossed = crossing_tables(records)
    assert not crossed
    assert NO_CROSSING in crossed.notes


def test_each_place_names_the_fastest_and_the_cheapest_and_what_is_level_with_it() -> None:
    least, crossed = crossing_tables(RECORDS)
    assert least.header[:6] == ("context", "batch", "fastest", "ms a step", "next fastest", "its ms")
    assert [tuple(cells[:6]) for cells in least.rows] == [
        ("192", "8", "gqa_1.5B", "10.00", "mqa_1.5B", "20.00"),
        ("1,024", "8", "gqa_1.5B", "20.00", "= mqa_1.5B", "20.10"),
        ("4,096", "8", "mqa_1.5B", "40.00", "gqa_1.5B int8", "60.00"),
    ]
    assert {cells[6:8] for cells in least.rows} == {("gqa_1.5B int8", "2")}
    assert (
        "time of a step",
        "batch 8, 64 new",
        "context",
        "gqa_1.5B",
        "mqa_1.5B",
        "192",
        "4,096",
        "887",
    ) in crossed.rows


def test_only_what_was_measured_alike_shares_a_map(tmp_path: Path) -> None:
    assert crossing_tables([RECORDS[0], line("mqa", (1.0, 1.0, 1.0)).model_copy(update={"dtype": "fp32"})]) == []
    for each in RECORDS:
        write_generation(each, tmp_path / f"{each.run}_{each.quantization}" / "generation.json")
    build_report(tmp_path)
    assert "## Where lines cross" in (tmp_path / "report.md").read_text()
    assert 'id="crossings"' in (tmp_path / "report.html").read_text()
