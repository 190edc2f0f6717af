"""What a report says first: words, sets, pictures, and what stays untold."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import pytest
from support.metrics_parts import make_record, printed
from support.rival_runs import by_scipy, rival_runs
from support.synthetic_runs import gpu_run, matrix_runs

from efficientbench.metrics.analysis.conditions import NOT_RECORDED
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.record_parts import DataSource, QualityPoint, Reinforcement
from efficientbench.metrics.report.answers import (
    NOISE_UNKNOWN,
    answers,
    answers_table,
    open_questions,
)
from efficientbench.metrics.report.build import build_report, markdown
from efficientbench.metrics.report.first_lines import first_lines, left_out, print_answers
from efficientbench.metrics.report.headline import print_results
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.plots.difference_plots import difference_figures
from efficientbench.metrics.report.plots.told import told_tables
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.sections.cautions import cautions
from efficientbench.metrics.report.suites import Suite, make_rows

CLEAR = {"mqa": [110.0, 111.0, 109.3], "gqa": [100.0, 101.0, 99.5], "mla": [80.0, 81.0, 79.5]}
ENERGY, SPEED, MEMORY, LOSS = range(4)


def only(records: list[RunRecord]) -> Suite:
    [suite] = make_rows(records).suites
    return suite


def test_the_best_row_is_named_with_its_distinguishing_settings() -> None:
    answer = answers(only(rival_runs("tokens_per_s", CLEAR)))[SPEED]
    more = statistics.geometric_mean(CLEAR["mqa"]) / statistics.geometric_mean(CLEAR["gqa"]) - 1
    assert (answer.kind, answer.text) == ("clear", "mqa: 110")
    low, high, _ = (end - 1 for end in by_scipy(CLEAR, "gqa", "mqa"))
    interval = f"(95 %: {low:.1%} to {high:.1%}; 3 and 3 runs)"
    assert answer.detail == f"{more:.1%} more than gqa {interval}, and than mla by more"


def test_the_terminal_prints_the_same_answers() -> None:
    suites = make_rows([*rival_runs("tokens_per_s", CLEAR), make_record({"size": "3B", "run": "gqa_3B"})]).suites
    lines = printed(print_answers, suites).splitlines()
    answer = answers(suites[0])[SPEED]
    assert lines[0] == "Attention mechanisms, 1.5B"
    assert f"  Fastest, tokens/s: {answer.text}; {answer.detail}" in lines
    # A row alone has nothing to answer: the table has its figures.
    assert "3B" not in "".join(lines)


def test_the_terminal_says_which_sets_ran_under_different_conditions() -> None:
    records = [
        *rival_runs("tokens_per_s", {"gqa": [100.0]}),
        *rival_runs("tokens_per_s", {"mqa": [90.0]}, seq_len=4096),
    ]
    text = " ".join(printed(print_answers, make_rows(records).suites, width=400).split())
    apart = "gqa (sequence 2048) against mqa (sequence 4096)"
    assert text == f"Attention mechanisms, 1.5B: not compared, for they ran otherwise: {apart}."


def test_a_difference_within_the_noise_is_reported_as_no_difference() -> None:
    alike = {"gqa": [100.0, 103.0, 97.0], "mqa": [101.0, 98.0, 104.0], "nsa": [20.0, 20.4, 19.8]}
    answer = answers(only(rival_runs("tokens_per_s", alike)))[SPEED]
    assert (answer.kind, answer.text) == ("level", "mqa and gqa: no difference")
    assert re.match(r"101 to 100; 95 %: -\d.\d% to \+\d.\d%; 3 and 3 runs; mqa ", answer.detail)
    told = r"more than nsa \(95 %: .*; 3 and 3 runs\); 1.0% apart at this spread takes 193 repeats$"
    assert re.search(told, answer.detail)


def test_answers_on_single_runs_have_figures_and_no_verdict() -> None:
    suite = only(rival_runs("tokens_per_s", {"gqa": [100.0], "mqa": [900.0]}))
    answer = answers(suite)[SPEED]
    assert (answer.kind, answer.text) == ("open", "no verdict; highest figure: mqa, 900")
    assert answers(suite)[ENERGY].kind == "absent"
    untold = open_questions([suite])
    assert f"{NOISE_UNKNOWN} (Attention mechanisms, 1.5B)." in untold
    assert any(line.startswith("not part of this test (J/token of mqa_1.5B; ") for line in untold)


def test_a_lone_run_is_not_compared() -> None:
    suite = only([gpu_run("gqa", "1.5B", steps=40)])
    assert {answer.kind for answer in answers(suite)} == {"alone"}
    assert "No other row under the same conditions to compare with (Attention mechanisms, 1.5B)." in open_questions(
        [suite]
    )
    assert difference_figures([suite]) == []


def test_rows_under_different_conditions_are_named_with_the_difference() -> None:
    records = rival_runs("tokens_per_s", {"gqa": [100.0, 101.0, 99.0], "mqa": [150.0, 151.0, 149.0]})
    mixed = [each.model_copy(update={"micro_batch_size": 1}) if each.variant == "gqa" else each for each in records]
    suite = only(mixed)
    assert answers(suite)[SPEED].detail == "not compared with gqa, which ran otherwise"
    [told] = [line for line in open_questions([suite]) if line.startswith("Not compared")]
    assert told == (
        "Not compared, layout: micro_batch_size 1 against micro_batch_size 2 "
        "(Attention mechanisms, 1.5B: gqa with mqa)."
    )
    assert "not compared (layout: micro_batch_size 1 against micro_batch_size 2)" in difference_figures([suite])[0].plot


def test_each_set_has_one_model_size_and_one_set_of_conditions() -> None:
    rows = make_rows(matrix_runs())
    assert [suite.title for suite in rows.suites] == [
        *(f"Attention mechanisms, {size}" for size in ("0.5B", "1.5B", "3B")),
        "Positional encodings, 1.5B",
        "Mixture of experts",
    ]
    assert [row.name for row in rows.suites[1].rows] == ["mqa", "gqa", "mla", "nsa"]
    assert [suite.rows[suite.baseline].name for suite in rows.suites] == ["mqa", "gqa", "gqa", "rope", "dense 1.5B"]
    assert left_out(rows) == "Left out: gqa_0.5B (stopped); moe_1.5Bx8 (failed)."
    longer = gpu_run("gqa", "1.5B", steps=40)
    longer = longer.model_copy(update={"seq_len": 4096, "config": longer.config | {"label": "longer"}})
    both = make_rows([gpu_run("mqa", "1.5B", steps=40), gpu_run("gqa", "1.5B", steps=40), longer]).suites
    assert [suite.conditions for suite in both] == ["sequence 2048", "sequence 4096"]
    assert [len(suite.rows) for suite in both] == [2, 1]


@pytest.mark.parametrize("earlier_first", [True, False])
def test_sets_with_and_without_a_recorded_condition_are_apart(earlier_first: bool) -> None:
    run = gpu_run("gqa", "1.5B", steps=40)
    earlier = run.model_copy(update={"environment": {}, "config": run.config | {"label": "earlier"}})
    suites = make_rows([earlier, run] if earlier_first else [run, earlier]).suites
    assert len(suites) == 2
    assert any(f"software {NOT_RECORDED}" in suite.conditions for suite in suites)


def test_a_users_own_variants_make_a_set() -> None:
    suite = only([make_record({"variant": "mine", "run": "mine_1.5B", "tokens_per_s": 5.0})])
    assert suite.title == "Other runs, 1.5B"


def test_the_chart_has_intervals_and_reports_no_difference_within_noise() -> None:
    figures = {"gqa": [100.0, 101.0, 99.5], "mqa": [110.0, 111.0, 109.3], "mla": [100.5, 99.0, 101.2]}
    [figure] = difference_figures([only(rival_runs("tokens_per_s", figures))])
    for variant in ("mqa", "mla"):
        low, high, _ = by_scipy(figures, "gqa", variant)
        assert f"95 % {low - 1:+.1%} to {high - 1:+.1%}" in figure.plot
    assert "no difference measurable" in figure.plot
    assert figure.plot.count(">no difference</text>") == 1
    assert figure.plot.count('class="verdict better"') == 1
    assert "mqa, the baseline" not in figure.plot
    assert "gqa, the baseline (Attention mechanisms, 1.5B)\nJ/token: n/a\ntokens/s: 100" in figure.plot


def test_a_chart_has_no_column_for_a_figure_that_no_row_has() -> None:
    [figure] = difference_figures([only(rival_runs("tokens_per_s", CLEAR))])
    assert re.findall(r">([^<]*) \(\w+ is better\)<", figure.plot) == ["tokens/s"]
    assert ">n/a<" not in figure.plot
    assert "J/token: n/a (gqa_1.5B: not part of this test)" in figure.plot
    assert difference_figures([only(rival_runs("mfu", CLEAR))]) == []


def test_the_charts_figures_of_several_sizes_stand_in_rows_of_their_own() -> None:
    small = [
        record.model_copy(update={"size": "0.5B", "run": f"{record.variant}_0.5B"})
        for record in rival_runs("tokens_per_s", {"gqa": [300.0], "mqa": [330.0]})
    ]
    suites = make_rows([*small, *rival_runs("tokens_per_s", CLEAR)]).suites
    [table] = told_tables(difference_figures(suites))
    told = {row[0]: row[list(table.header).index("tokens/s")] for row in table.rows}
    assert told["gqa, the baseline (Attention mechanisms, 0.5B)"] == "300"
    assert told["gqa, the baseline (Attention mechanisms, 1.5B)"] == "100"
    assert len(told) == 5


def test_no_range_mixes_models_of_several_sizes() -> None:
    dense = rival_runs("tokens_per_s", {"dense": [101.0, 98.0, 104.0]})
    sparse = [
        record.model_copy(update={"size": "0.5Bx8", "run": "moe_0.5Bx8"})
        for record in rival_runs("tokens_per_s", {"moe": [100.0, 103.0, 97.0]})
    ]
    answer = answers(only([*dense, *sparse]))[SPEED]
    assert answer.text == "dense 1.5B and moe 0.5Bx8: no difference"
    assert answer.detail.startswith("dense 1.5B: 101; 95 %: ")


def test_html_and_markdown_reports_begin_with_the_answers(tmp_path: Path) -> None:
    for number, record in enumerate(rival_runs("tokens_per_s", CLEAR)):
        write_record(record, tmp_path / str(number) / "record.json")
    build_report(tmp_path)
    page, text = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    for whole in (page, text):
        assert "mqa: 110" in whole
        assert whole.index("What these runs say") < whole.index("Results")
    assert text.index("mqa: 110") < text.index("| run |")
    rows = answers_table(make_rows(rival_runs("tokens_per_s", CLEAR)).suites).rows
    assert len(rows) == 1


def test_each_kind_of_caution_is_one_line_that_lists_its_runs() -> None:
    found = {each.title: each for each in cautions(matrix_runs())}
    assert found["Another process used the devices"].runs == ("mla_0.5B", "mla_1.5B", "mla_3B")
    assert found["Sparse in name alone"].runs == ("nsa_0.5B", "nsa_1.5B", "nsa_3B")
    assert len(found["Some steps took much longer than the others"].sentences) == 20
    assert cautions([make_record()]) == []


def test_a_run_that_learned_nothing_from_rewards_is_named() -> None:
    def rewarded(run: str, without_signal: int) -> RunRecord:
        learned = Reinforcement(40, without_signal, 0, 0.0, 0.0, None, None, [])
        return make_record({"run": run, "reinforcement": learned})

    [found] = cautions([rewarded("some", 39), rewarded("none", 40), make_record()])
    assert (found.title, found.runs) == ("Learned nothing from its rewards", ("none",))
    assert found.sentences == (
        "none: the answers to each of its 40 questions had one reward, so that every gradient was 0.",
    )


@pytest.mark.parametrize("count", [9, 30])
def test_many_rows_are_counted_instead_of_named(count: int) -> None:
    speeds = {f"v{number}": [100.0 + number / 100] * 1 for number in range(count)}
    answer = answers(only(rival_runs("tokens_per_s", speeds)))[SPEED]
    assert answer.detail.endswith(f"and {count - 1 - 6:,} more")


def test_implausible_figures_do_not_prevent_a_report() -> None:
    suite = only(
        rival_runs("tokens_per_s", {"gqa": [1e-150, 1e150, 1.0], "mqa": [1e150, 9e149, 1e-150], "mla": [-1.0]})
    )
    assert answers(suite)[SPEED].kind == "level"
    [figure] = difference_figures([suite])
    assert "inf" not in figure.plot
    assert "nan" not in figure.plot


def test_a_set_is_named_only_by_its_distinguishing_conditions() -> None:
    records = [make_record({"run": f"gqa_{count}", "devices": count, "dp": count}) for count in (4, 8)]
    labels = [suite.conditions for suite in make_rows(records).suites]
    assert labels == ["layout dp 4, device 4 × Trace 9000", "layout dp 8, device 8 × Trace 9000"]


def test_sets_of_other_data_have_its_names_and_sets_of_the_same_content_do_not() -> None:
    def labels(*texts: tuple[str, str, int]) -> list[str]:
        records = []
        for name, content, devices in texts:
            source = DataSource(
                source=name, weight=1, documents=1, tokens=9, fingerprint=content * 20, tokenizer_fingerprint="t"
            )
            run = {"run": f"gqa_{name}", "devices": devices, "dp": devices, "data": [source]}
            records.append(make_record(run))
        return [suite.conditions for suite in make_rows(records).suites]

    assert labels(("web.jsonl", "aa", 4), ("wiki.jsonl", "bb", 4)) == [
        "data 1 web.jsonl (aaaaaaaaaaaa)",
        "data 1 wiki.jsonl (bbbbbbbbbbbb)",
    ]
    same = labels(("web.jsonl", "aa", 4), ("copy.jsonl", "aa", 8))
    assert same == ["layout dp 4, device 4 × Trace 9000", "layout dp 8, device 8 × Trace 9000"]


def learned(variant: str, seed: int, step_s: float, loss: float) -> RunRecord:
    """A run of 1,000 steps of 100 tokens whose loss falls linearly in the tokens' logarithm from 6 to `loss`."""
    points = [
        QualityPoint(
            step=step, tokens=100 * step, loss=6 - (6 - loss) * math.log(step / 10) / math.log(100), loss_se=None,
            measured_tokens=100 * step, train_s=step_s * step, energy_j=None,
        )
        for step in (10, 100, 300, 1000)
    ]  # fmt: skip
    return make_record(
        {
            **{"variant": variant, "run": f"{variant}_1.5B", "seed": seed, "quality_curve": points},
            **{"al_s": step_s, "steps_measured": 1000, "tokens": 100_000, "tokens_per_s": 100 / step_s},
            **{"validation_loss": loss, "devices": 2, "dp": 2, "amu_gb": 3.0 if variant == "mqa" else 2.0},
            "config": {"training": {"seed": seed}, "model": {"attention": {"kind": variant}}},
        }
    )


STEPS_S = {"gqa": 1.0, "mla": 1.1, "mqa": 1.2}
LOSSES = {"gqa": 3.5, "mla": 3.0, "mqa": 3.6}


def three_variants() -> list[RunRecord]:
    off = (0.0, 0.004, -0.003)
    return [
        learned(name, seed, STEPS_S[name] * (1 + off[seed]), LOSSES[name])
        for name in STEPS_S
        for seed in range(3)
    ]  # fmt: skip


def test_the_first_line_chooses_by_the_time_to_a_loss_with_interval_and_price() -> None:
    rows = make_rows(three_variants())
    time, unbeaten = first_lines(rows, 2.5)
    # By hand: mla falls from 6 to 3 over two decades of steps, and gqa from 6 to 3.5; the common loss is mqa's 3.6.
    steps = {name: 10 * 100 ** ((6 - 3.6) / (6 - LOSSES[name])) for name in STEPS_S}
    times = {name: [steps[name] * STEPS_S[name] * (1 + off) for off in (0.0, 0.004, -0.003)] for name in STEPS_S}
    low, high, _ = (1 - end for end in by_scipy(times, "gqa", "mla"))
    best = statistics.geometric_mean(times["mla"])
    less = 1 - best / statistics.geometric_mean(times["gqa"])
    assert time == (
        f"Attention mechanisms, 1.5B: By time to a validation loss of 3.6: mla: {best / 60:.3g} min; {less:.1%} less "
        f"than gqa (95 %: {high:.1%} to {low:.1%}; 3 and 3 runs), and than mqa by more; "
        f"{best / 3600 * 2 * 2.5:.4g} in currency for mla."
    )
    assert unbeaten == (
        "Attention mechanisms, 1.5B: Beaten by no other row in tokens/s, AMU GB, val loss together: gqa and mla "
        "(figures as they stand)."
    )
    text = printed(lambda suites, console: print_answers(suites, console, 2.5), rows.suites, width=400)
    assert "  " + time.partition(": ")[2] in text
    for whole in (page(Report(rows, price_per_hour=2.5)), markdown(Report(rows, price_per_hour=2.5))):
        assert "By time to a validation loss of 3.6: mla" in whole


def test_runs_without_losses_have_no_cost_to_one() -> None:
    assert first_lines(make_rows(rival_runs("tokens_per_s", CLEAR)), 2.5) == []


def test_a_real_difference_that_is_too_small_to_matter_is_no_reason_to_choose() -> None:
    speeds = {"gqa": [100.0, 100.1, 99.9], "mqa": [100.6, 100.7, 100.5], "mla": [80.0, 80.1, 79.9]}
    records = rival_runs("tokens_per_s", speeds)
    answer = answers(only(records))[SPEED]
    assert (answer.kind, answer.text) == ("level", "mqa and gqa: no difference that matters")
    told = r"101 to 100; 0\.6% more than gqa \(95 %: .*; 3 and 3 runs\), less than the 1\.0% that matters; mqa 25"
    assert re.match(told, answer.detail)
    [suite] = make_rows(records, matters=0.001).suites
    assert answers(suite)[SPEED].text == "mqa: 101"
    # Of a loss each real difference matters.
    losses = {"gqa": [3.0, 3.0003, 2.9997], "mqa": [3.015, 3.0153, 3.0147]}
    assert answers(only(rival_runs("validation_loss", losses)))[LOSS].text == "gqa: 3.000"


def test_what_is_left_out_and_which_row_stands_in_for_the_baseline_are_first_lines() -> None:
    assert first_lines(make_rows(matrix_runs()), None)[-2:] == [
        "Left out: gqa_0.5B (stopped); moe_1.5Bx8 (failed).",
        "Attention mechanisms, 0.5B: differences are to mqa, for gqa has no completed row here.",
    ]


def test_a_terminal_shows_a_page_of_many_runs() -> None:
    sizes = [f"{size}B" for size in range(1, 41)]
    records = [
        make_record({"variant": variant, "size": size, "run": f"{variant}_{size}", "validation_loss": float(size[:-1])})
        for size in sizes
        for variant in ("gqa", "mqa")
    ]
    lines = printed(lambda suites, console: print_answers(suites, console), make_rows(records).suites).splitlines()
    assert lines[-1] == "35 more sets: report.md, or --only NAMES."
    table = printed(print_results, records).splitlines()
    assert "24 of 80 rows, those of the lowest validation loss, without losses the fastest: report.md has all." in table
    assert [line.split()[0] for line in table[1:25]] == [
        f"{name}_{size}" for size in sizes[:12] for name in ("gqa", "mqa")
    ]
