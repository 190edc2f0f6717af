"""report.html: whole, self-contained, and safe whatever stands in a record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metrics_parts import make_record
from support.pages import Parsed
from support.synthetic_runs import gpu_run, matrix_runs

from efficientbench.metrics.formulas.device_use import Disturbance, Timeline
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import Window
from efficientbench.metrics.report.build import markdown
from efficientbench.metrics.report.html import page as page_module
from efficientbench.metrics.report.html.page import compared, page
from efficientbench.metrics.report.plots import difference_plots
from efficientbench.metrics.report.plots.loss_plots import Point, front
from efficientbench.metrics.report.plots.svg import COLOURS, Look, Scale, numbered
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.section import SECTIONS
from efficientbench.metrics.report.suites import make_rows

[RUN] = numbered([make_record()])
ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&|"


@pytest.fixture(scope="module")
def matrix_page() -> str:
    return page(Report(make_rows(matrix_runs()), ["/somewhere/record.json: damaged, it is no JSON"]))


def test_the_page_of_the_whole_matrix_is_one_small_self_contained_file(matrix_page: str) -> None:
    assert len(matrix_page.encode()) < 2e6
    parsed = Parsed(matrix_page)
    loads = [
        value for _, attributes in parsed.elements for name, value in attributes.items() if name in ("src", "href")
    ]
    assert loads
    assert all(value and value.startswith("#") for value in loads)
    assert not re.search(r"@import|url\(", matrix_page)


def test_every_section_is_present_and_every_link_has_a_target(matrix_page: str) -> None:
    parsed = Parsed(matrix_page)
    assert len(parsed.text["h2"]) == 18  # all but failures, generation, evaluations, contexts, profiles and ranks
    anchors = {attributes["id"] for _, attributes in parsed.elements if attributes.get("id")}
    assert {f"#{anchor}" for anchor in anchors} >= {link["href"] for link in parsed.all("a")}


def test_each_run_is_a_row_whose_columns_can_be_sorted(matrix_page: str) -> None:
    parsed = Parsed(matrix_page)
    rows = [attributes for attributes in parsed.all("tr") if "data-run" in attributes]
    assert [row["data-run"] for row in rows] == [str(place) for place in range(21)]
    values = [attributes["data-v"] for attributes in parsed.all("td") if "data-v" in attributes]
    assert len(values) == 20 * 13 + 1  # the failed run has its parameters alone
    assert all(float(value or "x") == float(value or "y") for value in values)
    assert len([a for a in parsed.all("th") if a.get("aria-sort") == "none"]) == 14


def test_absent_figures_have_their_reason(matrix_page: str) -> None:
    for text in (
        "rank 3 ended: CUDA out of memory",
        "moe_1.5Bx8 (failed)",
        "sparse in name alone at sequence 2,048, where a query reads 1,295 keys",
        "python (pid 4711)",
        "step 133 (1.9 times the median; evaluation)",
    ):
        assert text in matrix_page


def test_the_answers_come_first_and_cautions_are_folded(matrix_page: str) -> None:
    places = [matrix_page.index(f'<section id="{anchor}">') for anchor in ("answers", "cautions", "results", "cost")]
    assert places == sorted(places)
    answers = matrix_page[places[0] : places[1]]
    assert answers.count("<figure") == 5
    assert "took much longer" not in answers
    cautions = matrix_page[places[1] : places[2]]
    assert cautions.count("<details") == cautions.count("<summary>") == 3
    assert cautions.count("<summary>Some steps took much longer than the others") == 1


def test_a_wide_plot_moves_alone_on_a_phone_and_its_words_can_be_read(matrix_page: str) -> None:
    wide = re.findall(r'<figure class="wide">(.*?)</figure>', matrix_page, re.S)
    assert len(wide) == 5
    moved = re.compile(r'<figcaption>[^<]*</figcaption><div class="across" tabindex="0"[^>]*><svg .*</svg></div>', re.S)
    assert all(map(moved.match, wide))
    least = re.search(r"\.across > svg \{ min-width: (\d+)px; \}", matrix_page)
    smallest = re.search(r"svg \.value \{ font-size: ([\d.]+)px; \}", matrix_page)
    assert least
    assert smallest
    assert int(least[1]) / difference_plots.WIDTH * float(smallest[1]) > 9


def test_no_plot_of_bars_mixes_sizes(matrix_page: str) -> None:
    begin = matrix_page.index('<section id="metrics">')
    part = matrix_page[begin : matrix_page.index("</section>", begin)]
    titles = re.findall(r"<summary>(.*?)</summary>(.*?)</details>", part, re.S)
    assert [title for title, _ in titles][:2] == ["Attention mechanisms, 0.5B", "Attention mechanisms, 1.5B"]
    for title, plots in titles[:-1]:  # the last has the figures of all plots, as a table
        sizes = set(re.findall(r"<title>\w+_(\d[\w.]*)", plots))
        assert len(sizes) == (1 if "B" in title else 3)


def attacked() -> RunRecord:
    timeline = Timeline(
        device=ATTACK,
        device_name=ATTACK,
        scope="gpu",
        bucket_s=1.0,
        time_s=[0.5, 1.5, 2.5],
        **dict.fromkeys(("memory_used_gb_mean", "memory_used_gb_max"), [1.0, 2.0, 3.0]),
        **dict.fromkeys(("utilization_mean", "utilization_max", "power_w_mean", "power_w_max"), [None] * 3),
    )
    names = ("run", "variant", "size", "device_name", "dtype")
    values: dict[str, Any] = {
        **dict.fromkeys(names, ATTACK),
        **{"al_s": 1.0, "al_s_ci_low": 0.9, "al_s_ci_high": 1.1, "validation_loss": 3.0, "tokens_per_s": 5.0},
        **{"device_scope": "gpu", "step_time_percentiles_s": [1.0] * 101, "amu_gb": 2.0},
        **{"timelines": [timeline], "windows": [Window(begin_s=0, end_s=2)]},
        "disturbances": [Disturbance(device=ATTACK, begin_s=1, end_s=2, description=ATTACK, share=None)],
        **{"kernels": {ATTACK: ATTACK}, "fallback_kernels": {"norm": ATTACK}},
        "environment": {ATTACK: ATTACK, "packages": {ATTACK: ATTACK}, "hostname": ATTACK},
        "config": {"model": {"moe": {"top_k": ATTACK}}, "data": {"path": ATTACK}, "training": {"recompute": ATTACK}},
    }
    return make_record(values, reason=ATTACK)


def test_markup_in_a_record_is_escaped() -> None:
    content = page(Report(make_rows([attacked(), gpu_run("gqa", "0.5B", steps=20)]), [ATTACK]))
    parsed = Parsed(content)
    assert len(parsed.all("script")) == 1
    script = Path(page_module.__file__).with_name("page.js").read_text()
    assert "".join(parsed.text["script"]).strip() == script.strip()
    assert parsed.all("img") == []
    assert not [name for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
    assert "alert(1)" in "".join(parsed.text["h3"])  # as text
    assert f"norm: {ATTACK}" in "".join(parsed.text["dd"])


def test_runs_without_spread_or_with_equal_figures_are_drawn() -> None:
    same = {"al_s": 0.5, "tokens_per_s": 100.0, "validation_loss": 2.0, "amu_gb": 0.0, "energy_j_per_token": 0.0}
    records = [make_record({**same, "run": name, "step_time_percentiles_s": [0.5] * 101}) for name in ("a", "b")]
    for content in (page(Report(make_rows(records))), page(Report(make_rows([make_record()])))):
        assert "What a loss costs" in " ".join(Parsed(content).text["h2"])
        assert "nan" not in content.split("<main>")[1].split("<footer>")[0]


def test_the_table_has_all_of_many_runs_and_plots_name_the_omitted_ones() -> None:
    content = page(Report(make_rows([make_record({"run": f"run {place}", "al_s": 0.5}) for place in range(60)])))
    assert "run 59" in content
    assert "The first 48 of 60 runs; the table has all of them." in content


def test_the_heading_counts_runs_and_says_how_many_repeats_a_row_has() -> None:
    repeated = [make_record({"run": "gqa_1.5B", "seed": seed, "status": "completed"}) for seed in (1, 2, 3)]
    stopped = make_record({"run": "mqa_1.5B", "status": "stopped"})
    lead = "".join(Parsed(page(Report(make_rows([*repeated, stopped])))).text["p"][:1])
    assert lead.startswith("4 runs in 2 rows of 1 to 3 repeats (3 completed, 1 stopped) on ")
    lead = "".join(Parsed(page(Report(make_rows([repeated[0]])))).text["p"][:1])
    assert lead.startswith("1 run (1 completed) on ")


def test_the_heading_marks_sizes_that_are_so_in_name_alone() -> None:
    records = [make_record({"size": size, "smoke": True, "run": f"gqa_{size}"}) for size in ("0.5B", "1.5B")]
    assert compared(records) == "gqa at 0.5B (smoke), 1.5B (smoke)"
    assert compared([make_record({"size": "3B"})]) == "gqa at 3B"


def test_a_line_names_a_few_of_many_runs_and_counts_the_rest() -> None:
    records = [make_record({"run": f"run {place:02}", "resumed_after_steps": [5]}) for place in range(60)]
    content = page(Report(make_rows(records)))
    found = re.search(
        r"last attempt<span class=\"note\">: <span title=\"([^\"]*)\">([^<]*) and 36 more</span>", content
    )
    assert found is not None
    assert [len(names.split(", ")) for names in found.groups()] == [60, 24]


def test_marks_of_eleven_variants_differ() -> None:
    looks = [Look.of(order) for order in range(11)]
    assert len(set(looks)) == 11
    assert {look.colour for look in looks} == set(range(COLOURS))


@given(
    costs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12),
    higher=st.booleans(),
)
@settings(max_examples=100)
def test_the_pareto_front_holds_exactly_the_undominated_points(costs: list[tuple[int, int]], higher: bool) -> None:
    points = [Point(RUN, cost, loss, "") for cost, loss in costs]
    found = {(point.cost, point.loss) for point in front(points, "higher" if higher else "lower")}
    sign = -1 if higher else 1

    def beaten(cost: int, loss: int) -> bool:
        return any((sign * c <= sign * cost and le <= loss) and (c, le) != (cost, loss) for c, le in costs)

    assert found == {(cost, loss) for cost, loss in costs if not beaten(cost, loss)}


@given(
    values=st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=6),
    log=st.booleans(),
)
@settings(max_examples=100)
def test_an_axis_spans_its_values_and_has_round_ticks(values: list[float], log: bool) -> None:
    scale = Scale.over(values, 10, 300, log=log)
    assert all(10 <= scale(value) <= 300 for value in values)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 40
    assert ticks == sorted(ticks)
    assert all(re.fullmatch(r"-?(\d+|\d+\.\d+)(e[+-]\d+)?", f"{tick:.10g}") for tick in ticks)


def test_the_page_and_report_md_have_their_sections_in_the_order_of_the_list() -> None:
    report = Report(make_rows(matrix_runs()), ["/somewhere/record.json: damaged, it is no JSON"])
    places = {section.title: place for place, section in enumerate(SECTIONS)}
    for titles in (Parsed(page(report)).text["h2"], re.findall("^## (.*)$", markdown(report), re.MULTILINE)):
        found = [places[title] for title in titles if title in places]
        assert len(found) >= 4
        assert found == sorted(found)


def test_every_macro_of_the_page_belongs_to_a_section() -> None:
    looks = re.findall(r"macro (\w+)\(shown\)", Path(page_module.__file__).with_name("sections.html").read_text())
    assert set(looks) - {"tabled", "told"} <= {section.anchor for section in SECTIONS}
