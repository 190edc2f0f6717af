"""Generation in every report: beside its run's training, with whose figures they are and what is n/a."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.generated import failed_row, generation, phase, row
from support.synthetic_runs import gpu_run

from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.records.generation.generation import GenerationRecord, write_generation
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.plots.generation_plots import generation_figures
from efficientbench.metrics.report.plots.svg import MOST_RUNS, numbered
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.sections.generation import (
    NO_TRAINING,
    beside,
    generation_notes,
    generation_table,
    print_generation,
)
from efficientbench.metrics.report.suites import make_rows

VARIANTS = ("gqa", "mqa", "mla", "nsa")


def of_run(record: RunRecord, *rows: object) -> GenerationRecord:
    return generation(record.variant, rows=rows, config={"model": record.config["model"]})  # type: ignore[arg-type]


def written(folder: Path) -> tuple[list[RunRecord], list[GenerationRecord]]:
    """Three runs that were trained and measured, and NSA without training."""
    records = [gpu_run(variant, "1.5B") for variant in VARIANTS[:3]]
    generations = [*map(of_run, records), generation("nsa")]
    for record in records:
        write_record(record, folder / record.run / "record.json")
    for each in generations:
        write_generation(each, folder / each.run / "generation.json")
    return records, generations


def test_a_generation_row_joins_the_training_row_of_the_same_run_and_model() -> None:
    records = [gpu_run(variant, "1.5B", seed=seed) for variant in ("gqa", "mqa") for seed in (1, 1234)]
    other = generation("gqa", config={"model": {"layers": 1}})
    found = beside([of_run(records[2]), other, of_run(records[0])], records)
    assert [each.trained for each in found] == [3, None, 1]
    assert [each.name for each in found] == ["mqa_1.5B", "gqa_1.5B seed 1234", "gqa_1.5B seed 1234 #2"]
    table = generation_table(found, records)
    trained = f"{records[3].tokens_per_s:,.0f}"
    assert [line[-2] for line in table.rows[:6]] == [trained] * 6
    assert table.rows[6][-2:] == ("n/a", "n/a")
    assert table.header[-2:] == ("training tokens/s", "training J/token")


def test_failed_generations_are_rows_and_every_absent_figure_has_a_reason() -> None:
    failed = failed_row(16_384, 64, "out of memory: 40 would fit")
    record = generation("gqa", rows=[row("gqa", 128, 8, joules=None), failed])
    [found] = beside([record], [])
    table = generation_table([found], [])
    # Without any training it has no columns of it, which the notes explain.
    assert not [title for title in table.header if "training" in title]
    assert table.rows[1][4:] == ("n/a",) * (len(table.header) - 4)
    assert table.rows[0][8] == "±1.0%"
    notes = generation_notes([found])
    assert notes[0].startswith("Engine: efficientbench: one static batch")
    assert "No figures of vLLM's, SGLang's" in notes[0]
    assert "gqa_1.5B, prompt 16,384, batch 64: not measured: out of memory: 40 would fit" in notes
    assert "n/a prefill J/token, decode J/token, AEC, W: no sensor of energy" in notes
    assert f"n/a training (gqa_1.5B): {NO_TRAINING}" in notes


def test_doubtful_energy_and_other_processes_are_reported() -> None:
    decode = phase(0.05, 8, joules=3.0, energy_doubt="counted 3 J, and polled power gives 9 J")
    prefill = phase(0.05, 1024, joules=0.1, disturbances=[Disturbance("GPU-0", 0.0, 1.0, "process 7")])
    record = generation("gqa", rows=[row("gqa", 128, 8, decode=decode, prefill=prefill)])
    notes = generation_notes(beside([record, generation("mqa")], []))
    assert "gqa_1.5B, prompt 128, batch 8, decode: counted 3 J, and polled power gives 9 J." in notes
    assert "Another process used a device of gqa_1.5B meanwhile." in notes
    assert not any("Another process" in note for note in generation_notes(beside([generation("mqa")], [])))


def test_all_reports_hold_generation(tmp_path: Path) -> None:
    records, generations = written(tmp_path)
    made = build_report(tmp_path)
    assert (len(made.records), len(made.generations), made.warnings) == (3, 4, [])
    with (tmp_path / "generation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    first = next(
        each for each in rows if (each["run"], each["prompt_tokens"], each["batch"]) == ("gqa_1.5B", "128", "8")
    )
    wanted = row("gqa", 128, 8)
    assert float(first["decode_tokens_per_s"]) == wanted.value("decode_tokens_per_s")
    assert float(first["training_tokens_per_s"]) == records[0].tokens_per_s
    assert "experts_touched: the model has no experts" in first["unavailable"]
    [of_nsa, *_] = [each for each in rows if each["variant"] == "nsa"]
    assert of_nsa["training_tokens_per_s"] == "n/a"
    assert f"training_tokens_per_s: {NO_TRAINING}" in of_nsa["unavailable"]
    text = (tmp_path / "report.md").read_text()
    assert "## Generation" in text
    assert "No figures of vLLM's, SGLang's or another server's." in text
    page = (tmp_path / "report.html").read_text()
    assert '<section id="generation">' in page
    assert page.count("one line a model") == 3
    for variant in VARIANTS:
        assert re.search(rf'<li><svg[^>]* aria-label="{variant}">.*?</svg>{variant}</li>', page)


def test_tensorboard_shows_generation_over_context_beside_training(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written(tmp_path)
    build_report(tmp_path)
    assert sorted(path.name for path in (tmp_path / "hparams").iterdir()) == sorted(f"{each}_1.5B" for each in VARIANTS)
    events = EventAccumulator(str(tmp_path / "hparams" / "gqa_1.5B"))
    events.Reload()
    scalars = events.Scalars("generation/batch_8/decode_tokens_per_s")
    assert [scalar.step for scalar in scalars] == [128 + 64, 2048 + 64, 16_384 + 64]
    assert scalars[0].value == pytest.approx(row("gqa", 128, 8).value("decode_tokens_per_s"))
    assert events.Scalars("tokens_per_s")


def test_a_copied_folder_is_reported_beside_the_first(tmp_path: Path) -> None:
    record = gpu_run("gqa", "1.5B")
    for name in ("run", "copy"):
        write_record(record, tmp_path / name / "record.json")
        write_generation(of_run(record), tmp_path / name / "generation.json")
    assert len(build_report(tmp_path).generations) == 2
    assert len(list(tmp_path.glob("hparams/*/*.generation_*"))) == 2


def test_generation_without_training_is_reported(tmp_path: Path) -> None:
    for variant in VARIANTS:
        write_generation(generation(variant), tmp_path / variant / "generation.json")
    made = build_report(tmp_path)
    assert made.records == []
    page = (tmp_path / "report.html").read_text()
    assert "no training, generation with 4 models on NVIDIA H100 80GB HBM3" in page
    assert '<section id="results">' not in page
    console = Console(width=100)
    with console.capture() as captured:
        print_generation(beside(made.generations, []), [], console)
    assert captured.get().count("nsa_1.5B") > 6


def test_a_line_has_each_context_once_and_the_colour_of_its_run() -> None:
    records = [gpu_run(variant, "1.5B") for variant in ("gqa", "nsa")]
    runs = numbered(records)
    figures = generation_figures(beside([of_run(records[1]), generation("mla")], records), runs)
    assert [figure.title for figure in figures] == [
        "Decode tokens/s, batch 1", "Decode tokens/s, batch 8", "Cache of one sequence",
    ]  # fmt: skip
    for figure in figures:
        lines = re.findall(r'<polyline points="([^"]+)" class="line c(\d)"', figure.plot)
        assert sorted(colour for _, colour in lines) == ["1", "2"]
        assert all(len(points.split()) == 3 for points, _ in lines)
        assert set(re.findall(r'data-run="(\d+)"', figure.plot)) == {"1", "3"}
        places = [float(point.split(",")[0]) for point in lines[0][0].split()]
        assert places == sorted(places)
    # Of the speed alone the interval is known.
    # Of the speed alone the interval is known, which is drawn in the line's colour.
    assert [len(re.findall(r'<line [^>]*class="line c', figure.plot)) for figure in figures] == [6, 6, 0]


def test_a_single_point_is_drawn() -> None:
    [figure, cache] = generation_figures(beside([generation("gqa", rows=[row("gqa", 128, 1)])], []), [])
    assert figure.plot.count("<circle") == cache.plot.count("<circle") == 1


def test_models_under_different_conditions_have_separate_plots() -> None:
    made = [generation("gqa"), generation("mqa"), generation("mla", dtype="fp16")]
    figures = generation_figures(beside(made, []), [])
    device, titles = (
        "NVIDIA H100 80GB HBM3",
        ("Decode tokens/s, batch 1", "Decode tokens/s, batch 8", "Cache of one sequence"),
    )
    wanted = [f"{title}, {device}, {dtype}" for dtype in ("bf16", "fp16") for title in titles]
    assert [figure.title for figure in figures] == wanted
    assert [figure.plot.count("<polyline") for figure in figures] == [2, 2, 2, 1, 1, 1]
    compiled = generation_figures(beside([made[0], generation("mqa", steps="compiled")], []), [])
    assert [figure.title for figure in compiled[3:]] == [f"{title}, {device}, bf16, compiled steps" for title in titles]


def test_the_page_says_which_plots_omit_models() -> None:
    for count in (MOST_RUNS, MOST_RUNS + 1):
        made = [generation("gqa", run=f"gqa_{number}", rows=[row("gqa", 128, 1)]) for number in range(count)]
        told = f"The first {MOST_RUNS} of {count} runs; the table has all of them." in page(
            Report(make_rows([]), generations=made)
        )
        assert told == (count > MOST_RUNS)


def test_markup_in_a_generation_record_is_escaped() -> None:
    attack = "</script><script>alert(1)</script>"
    record = generation("gqa", run=attack, decode_path=attack, device_name=attack)
    assert attack not in page(Report(make_rows([]), generations=[record, generation("mqa")]))
