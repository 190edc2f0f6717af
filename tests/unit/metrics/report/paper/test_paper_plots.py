"""`efficientbench plot`: drawings that need no style sheet, PDF files that can be read, and LaTeX tables."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pypdfium2.raw as pdfium
import pytest
from markupsafe import Markup
from PIL import Image
from pypdfium2 import PdfDocument
from support.metrics_parts import make_record
from support.rival_runs import rival_runs
from support.synthetic_runs import gpu_run
from typer.testing import CliRunner

from efficientbench.basics.errors import MetricsError
from efficientbench.cli.app import _EXTRAS, app
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.report.choice import Choice
from efficientbench.metrics.report.headline import cell
from efficientbench.metrics.report.paper.latex import latex, latex_tables
from efficientbench.metrics.report.paper.paper_plots import file_name, write_plots
from efficientbench.metrics.report.paper.standalone import DOTS_PER_INCH, NAMESPACE, pdf_file, png_file, svg_file
from efficientbench.metrics.report.plots.difference_plots import difference_figures
from efficientbench.metrics.report.suites import Suite, make_rows

SPEEDS = {
    "mqa": [110.0, 111.0, 109.3],
    "gqa": [100.0, 101.0, 99.5],
    "mla": [110.4, 109.0, 112.0],
    "nsa": [50.0, 50.1, 49.9],
}
MARKS = {"rect", "circle", "line", "polyline", "polygon"}


@pytest.fixture(scope="module")
def suites() -> list[Suite]:
    return make_rows(rival_runs("tokens_per_s", SPEEDS)).suites


def size_points(plot: Markup) -> tuple[float, float]:
    """Return the width and height of the page: a unit of a plot is a CSS pixel, of which an inch has 96."""
    _, _, width, height = map(float, ElementTree.fromstring(plot).attrib["viewBox"].split())
    return width * 72 / 96, height * 72 / 96


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for size in ("0.5B", "1.5B"):
        for variant in ("gqa", "mqa"):
            record = gpu_run(variant, size, steps=40).model_copy(update={"timelines": []})
            write_record(record, tmp_path / record.run / "record.json")
    return tmp_path


def test_every_mark_carries_its_own_style_attributes(suites: list[Suite]) -> None:
    [figure] = difference_figures(suites)
    root = ElementTree.fromstring(svg_file(figure.plot))
    assert root.tag == f"{{{NAMESPACE}}}svg"
    elements = [(each.tag.removeprefix(f"{{{NAMESPACE}}}"), each.attrib) for each in root.iter()]
    for tag, attributes in elements:
        assert not {"class", "data-run"} & set(attributes)
        if tag == "text":
            assert {"fill", "font-size", "x", "y"} <= set(attributes)
        elif tag in MARKS:
            assert "fill" in attributes
            assert re.fullmatch(r"none|#[0-9a-f]{6}", attributes["fill"])
    drawn = [attributes for tag, attributes in elements if tag == "circle"]
    hollow = [attributes for attributes in drawn if attributes["fill"] == "#ffffff"]
    # mqa and mla against gqa are clear, as nsa is: none is hollow.
    assert (len(drawn), len(hollow)) == (3, 0)
    assert len({attributes["fill"] for attributes in drawn}) == 2


def test_a_pdf_has_one_page_of_text_and_vector_marks_as_large_as_the_plot(suites: list[Suite]) -> None:
    [figure] = difference_figures(suites)
    document = PdfDocument(pdf_file(figure.plot))
    assert len(document) == 1
    assert document[0].get_size() == pytest.approx(size_points(figure.plot), abs=0.1)
    text = document[0].get_textpage().get_text_range()
    assert {"mqa", "gqa", "mla", "nsa"} <= set(text.split())
    assert "tokens/s (higher is better)" in text
    kinds = [each.type for each in document[0].get_objects(max_depth=9)]
    assert kinds.count(pdfium.FPDF_PAGEOBJ_PATH) >= 3  # a circle a row
    assert pdfium.FPDF_PAGEOBJ_IMAGE not in kinds


def test_a_png_has_the_plots_colours_at_its_resolution(suites: list[Suite]) -> None:
    [figure] = difference_figures(suites)
    image = Image.open(io.BytesIO(png_file(figure.plot)))
    assert image.size == pytest.approx([each * DOTS_PER_INCH / 72 for each in size_points(figure.plot)], abs=1)
    assert image.info["dpi"] == pytest.approx((DOTS_PER_INCH, DOTS_PER_INCH), abs=0.1)
    pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    colours = {f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in np.unique(pixels, axis=0)}
    drawn = set(re.findall(r'fill="(#[0-9a-f]{6})"', svg_file(figure.plot)))
    assert len(drawn) > 3
    assert drawn <= colours


@pytest.mark.parametrize("form", ["pdf", "png"])
def test_a_format_without_its_package_writes_nothing(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        write_plots(folder, form, Choice())
    assert _EXTRAS[raised.value.name or ""] == "plots"
    assert not (folder / "plots").exists()


def test_tables_print_the_best_value_and_its_ties_bold(suites: list[Suite]) -> None:
    text = latex_tables(suites)
    rows = {line.partition(" & ")[0]: line for line in text.splitlines() if line.endswith(r"\\") and "&" in line}
    assert set(rows) == {"", "mqa", "gqa", "mla", "nsa"}
    assert {name for name, line in rows.items() if r"\textbf" in line} == {"mqa", "mla"}
    assert r"110 $\pm$" in rows["mqa"]
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert len(re.findall(r"(?<!\\)%", text)) == 1  # the comment


def test_the_caption_of_smoke_models_has_their_own_parameters(suites: list[Suite]) -> None:
    sizes = {"mqa": 1_040_000, "gqa": 1_048_112, "mla": 1_097_824, "nsa": 1_060_000}
    runs = [
        record.model_copy(update={"smoke": True, "parameters": sizes[record.variant]})
        for record in rival_runs("tokens_per_s", SPEEDS)
    ]
    assert "(smoke). Scaled-down models of 1.04M to 1.10M parameters. On " in latex_tables(make_rows(runs).suites)
    assert "Scaled-down" not in latex_tables(suites)


def test_rows_and_columns_of_plots_are_chosen_by_name(folder: Path) -> None:
    words = ["plot", str(folder), "--only", "gqa_0.5B,mqa_0.5B", "--columns", "tokens_per_s,al_s"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    tables = (folder / "plots" / "tables.tex").read_text()
    assert tables.count(r"\begin{table}") == 1
    assert r" & tokens/s $\uparrow$ & AL ms $\downarrow$ \\" in tables
    assert not list((folder / "plots").glob("*1_5b*"))
    with pytest.raises(MetricsError, match="--only: 'gqq' is none of .*; did you mean gqa?"):
        write_plots(folder, "svg", Choice(only=["gqq"]))
    with pytest.raises(MetricsError, match="--columns: 'token_per_s' is none of .*; did you mean tokens_per_s?"):
        write_plots(folder, "svg", Choice(columns=["token_per_s"]))


def test_tables_and_plots_mark_what_is_speed_only_and_smoke() -> None:
    runs = rival_runs("tokens_per_s", {"gqa": [100.0], "mqa": [90.0]})
    short = {"tokens_per_parameter": 0.5, "smoke": True}
    [suite] = make_rows([run.model_copy(update=short) for run in runs]).suites
    assert {row.marked for row in suite.rows} == {f"{name} (smoke) (speed only)" for name in ("gqa", "mqa")}
    assert "gqa (smoke) (speed only) & " in latex_tables([suite])
    [figure] = difference_figures([suite])
    assert svg_file(figure.plot).count("(smoke) (speed only)</text>") == 2


def test_equal_repeats_have_no_margin_and_small_ones_are_above_0() -> None:
    record = make_record({"tokens_per_s": 100.0, "repeats": 3})
    shown = {
        std: cell("tokens_per_s", record.model_copy(update={"repeat_std": {"tokens_per_s": std}}))
        for std in (0.0, 0.01, 0.2)
    }
    assert shown == {0.0: "100", 0.01: "100 ±<0.1%", 0.2: "100 ±0.2%"}


def test_single_runs_have_nothing_bold() -> None:
    text = latex_tables(make_rows(rival_runs("tokens_per_s", {"gqa": [100.0], "mqa": [900.0]})).suites)
    assert r"\textbf" not in text


def test_latex_commands_in_a_record_are_escaped() -> None:
    assert latex("a_b\\input{x} 5% $&#~^ ±\n") == (
        r"a\_b\textbackslash{}input\{x\} 5\% \$\&\#\textasciitilde{}\textasciicircum{} $\pm$"
    )


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_the_command_writes_each_plot_and_the_tables(folder: Path, form: str) -> None:
    done = CliRunner().invoke(app, ["plot", str(folder), "--format", form])
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (folder / "plots").iterdir())
    assert [str(folder / "plots" / name) for name in names] == sorted(done.output.split())
    assert names == sorted(
        [
            "tables.tex",
            *(f"attention_mechanisms_{size}_differences_to_gqa.{form}" for size in ("0_5b", "1_5b")),
            *(
                f"attention_mechanisms_{size}_loss_against_{cost}.{form}"
                for size in ("0_5b", "1_5b")
                for cost in ("energy", "throughput", "memory")
            ),
            *(f"{what}_over_sizes.{form}" for what in ("energy", "speed", "loss")),
        ]
    )
    begin = b"%PDF-1." if form == "pdf" else b"<svg"
    assert all(path.read_bytes().startswith(begin) for path in (folder / "plots").glob(f"*.{form}"))


def test_a_folder_without_a_completed_run_is_refused(tmp_path: Path) -> None:
    write_record(make_record({"status": "failed"}), tmp_path / "record.json")
    with pytest.raises(MetricsError, match="no completed run's record"):
        write_plots(tmp_path, "svg", Choice())


def test_a_title_becomes_a_file_name_that_latex_accepts() -> None:
    assert file_name("Loss, 1.5B: ../a b\\c") == "loss_1_5b_a_b_c"
