"""Thresholds of `compare --fail-if`: what fails, what passes, what the runs do not tell, and the files for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from scipy import stats
from support.metrics_parts import make_record, printed
from typer.testing import CliRunner

from efficientbench.cli.app import app
from efficientbench.metrics import MetricsError
from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.repeats import Group, group_repeats
from efficientbench.metrics.analysis.thresholds import METRICS, Threshold, judge
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.report.sections.thresholds import append_summary, print_outcomes, write_junit

CALM = (990.0, 1000.0, 1010.0)


def run_of(seed: int, **figures: Any) -> RunRecord:
    config = {"model": {"layers": 2}, "training": {"seed": seed}}
    return make_record({"seed": seed, "config": config, "tokens": 1000, "steps_measured": 10, **figures})


def runs(metric: str, *values: float) -> Group:
    (group,) = group_repeats(run_of(seed, **{metric: value}) for seed, value in enumerate(values))
    return group


def state(threshold: str, first: Group, second: Group) -> str:
    (outcome,) = judge([Threshold.of(threshold)], compare(first, second))
    return outcome.state


@pytest.mark.parametrize(
    ("threshold", "factor", "expected"),
    [
        ("tokens_per_s<-3%", 0.90, "failed"),
        ("tokens_per_s<-3%", 1.10, "passed"),
        ("tokens_per_s<-3%", 1.00, "passed"),
        # The interval is about ±2.3 %, and holds the threshold.
        ("tokens_per_s<-3%", 0.96, "undecided"),
        ("tokens_per_s>3%", 1.10, "failed"),
        ("tokens_per_s>3%", 0.90, "passed"),
        ("tokens_per_s > +3 %", 1.04, "undecided"),
        # A gain that is demanded.
        ("tokens_per_s<5%", 1.00, "failed"),
        ("tokens_per_s<5%", 1.10, "passed"),
    ],
)
def test_a_threshold_fails_where_the_whole_interval_is_beyond_it(threshold: str, factor: float, expected: str) -> None:
    first = runs("tokens_per_s", *CALM)
    second = runs("tokens_per_s", *(value * factor for value in CALM))
    assert state(threshold, first, second) == expected


def test_the_threshold_matches_welchs_interval() -> None:
    """The limit that just fails is where SciPy's one-sided test of a shifted null has p = 2.5 %."""
    import numpy as np

    first, second = np.log(CALM), np.log(np.array((930.0, 950.0, 955.0)))
    shown = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    edge = float(np.exp(-shown.low) - 1) * 100
    groups = runs("tokens_per_s", *CALM), runs("tokens_per_s", 930.0, 950.0, 955.0)
    assert state(f"tokens_per_s<{edge + 0.01:.4f}%", *groups) == "failed"
    assert state(f"tokens_per_s<{edge - 0.01:.4f}%", *groups) == "undecided"


def test_too_few_runs_and_absent_figures_are_inconclusive() -> None:
    first, second = runs("tokens_per_s", 1000.0), runs("tokens_per_s", 100.0)
    (few, absent) = judge([Threshold.of("tokens_per_s<-3%"), Threshold.of("mfu<-3%")], compare(first, second))
    assert (few.state, absent.state) == ("undecided", "undecided")
    assert "it takes 3 repeats on each side" in few.why
    assert absent.why == "gqa_1.5B: not part of this test"


def test_identical_runs_nearby_set_the_noise_of_single_runs() -> None:
    first, second = runs("al_s_p99", 1.0), runs("al_s_p99", 1.5)
    of_another_model = [
        run_of(seed, al_s_p99=1 + seed / 1000, config={"model": {"layers": 3}, "training": {"seed": seed}})
        for seed in range(10)
    ]
    (outcome,) = judge(
        [Threshold.of("al_s_p99>10%")], compare(first, second, neighbours=group_repeats(of_another_model))
    )
    assert (outcome.state, outcome.ratio and outcome.ratio.basis) == ("failed", "runs of identical models")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens_per_s", "another form than FIGURE<-3%"),
        ("tokens_per_s<-3", "another form"),
        ("token_per_s<-3%", "did you mean tokens_per_s?"),
        ("energy_scope<-3%", "no number that a record measures"),
        ("al_s_drift_flagged<-3%", "no number that a record measures"),
        ("tokens_per_s<-100%", "no figure changes by -100%"),
    ],
)
def test_an_invalid_threshold_is_refused(text: str, message: str) -> None:
    with pytest.raises(MetricsError, match=message.replace("?", r"\?")):
        Threshold.of(text)


def test_every_measured_number_can_have_a_threshold() -> None:
    assert {"tokens_per_s", "al_s_p99", "outlier_steps", "validation_loss", "tokens_to_loss"} <= set(METRICS)


def outcomes_and_comparison() -> tuple[Any, Any]:
    comparison = compare(runs("tokens_per_s", *CALM), runs("tokens_per_s", *(value * 0.9 for value in CALM)))
    texts = ("tokens_per_s<-3%", "tokens_per_s<-20%", "mfu<-3%")
    return judge([Threshold.of(text) for text in texts], comparison), comparison


def test_outcomes_are_printed_and_written_for_ci(tmp_path: Path) -> None:
    outcomes, comparison = outcomes_and_comparison()
    lines = printed(print_outcomes, outcomes).splitlines()
    assert lines[0].startswith("failed: tokens_per_s<-3%: -10.00%, 95 % interval -12.")
    assert [line.partition(":")[0] for line in lines] == ["failed", "passed", "undecided"]

    write_junit(outcomes, comparison, tmp_path / "new" / "junit.xml")
    (suite,) = ElementTree.parse(tmp_path / "new" / "junit.xml").getroot()
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        **{"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    }
    cases = list(suite)
    assert [case.get("name") for case in cases] == [str(outcome.threshold) for outcome in outcomes]
    assert [child.tag for case in cases for child in case] == ["failure", "system-out", "skipped"]
    assert cases[0][0].get("message") == outcomes[0].why

    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    append_summary(outcomes, comparison, summary)
    text = summary.read_text()
    assert text.startswith("before\n### gqa_1.5B × 3 over gqa_1.5B × 3\n")
    assert "| failed | tokens_per_s&lt;-3% | -10.00%" in text
    assert "| tokens/s | 1000 | 900 | 0.900 |" in text
    with pytest.raises(MetricsError, match="cannot be written"):
        append_summary(outcomes, comparison, tmp_path)


def test_the_command_exits_with_1_if_a_threshold_fails(tmp_path: Path) -> None:
    for name, factor in (("base", 1.0), ("run", 0.9)):
        for seed, value in enumerate(CALM):
            write_record(run_of(seed, tokens_per_s=value * factor), tmp_path / name / f"seed_{seed}" / "record.json")
    folders = [str(tmp_path / name) for name in ("base", "run")]

    def code(*words: str, **environment: str) -> int:
        return CliRunner().invoke(app, ["compare", *folders, *words], env=environment).exit_code

    assert code("--fail-if", "tokens_per_s<-3%") == 1
    assert code("--fail-if", "tokens_per_s<-20%", "--fail-if", "mfu<-3%") == 0
    assert code("--fail-if", "tokens_per_s<-20%", "--fail-if", "tokens_per_s<-3%") == 1
    assert code("--junit", str(tmp_path / "junit.xml")) == 2
    assert code(GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md")) == 0
    assert "0.900" in (tmp_path / "summary.md").read_text()


def test_several_runs_named_below_the_output_folder_are_compared_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, factor in (("a", 1.0), ("b", 0.99), ("c", 0.9)):
        for seed, value in enumerate(CALM):
            folder = tmp_path / "output" / "suite" / name / f"seed_{seed}"
            write_record(run_of(seed, tokens_per_s=value * factor), folder / "record.json")
    words = ["compare", "a", "b", "c", "--fail-if", "tokens_per_s<-3%"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    begins = [done.stdout.index(f"output/suite/{name} against output/suite/a\n") for name in "bc"]
    assert begins[0] < done.stdout.index("0.990") < begins[1] < done.stdout.index("0.900")
    assert "2 comparisons, each by itself; `efficientbench report` judges all rows together" in done.stdout
    assert CliRunner().invoke(app, words[:3] + words[4:]).exit_code == 0
    (tmp_path / "output" / "other" / "a").mkdir(parents=True)
    refused = " ".join(CliRunner().invoke(app, words).stderr.replace("│", " ").split())
    assert "a: there are output/other/a, output/suite/a: name one by its path" in refused
    done = CliRunner().invoke(app, ["compare", "suite/a", "suite/b"])
    assert (done.exit_code, "0.990" in done.stdout) == (0, True)
    # All names are looked up before the first comparison is printed.
    done = CliRunner().invoke(app, ["compare", "b", "c", "nope"])
    assert (str(done.exception), done.stdout) == ("nope: there is no such folder to report on", "")


@pytest.mark.parametrize(
    "words",
    [
        ["report", "RUN"],
        ["plot", "RUN"],
        ["generate", "RUN", "--prompt", "a"],
        ["generate", "suite/RUN", "--measure"],
        ["evaluate", "RUN"],
        ["export", "RUN", "exported"],
        ["chat", "RUN"],
        ["serve", "RUN"],
        ["share", "RUN"],
    ],
    ids=lambda words: words[0],
)
def test_each_command_that_takes_a_run_looks_its_name_up(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output" / "suite" / "gqa_0.5B_smoke").mkdir(parents=True)
    (tmp_path / "output" / "suite" / "gqa_0.5B_smoke" / "config.json").write_text("{")

    def said(name: str) -> str:
        done = CliRunner().invoke(app, [word.replace("RUN", name) for word in words])
        return " ".join(f"{done.stderr} {done.exception}".replace("│", " ").split())

    assert "gqa_0.5B_smok: there is no such folder; did you mean gqa_0.5B_smoke?" in said("gqa_0.5B_smok")
    assert "output/suite/gqa_0.5B_smoke" in said("gqa_0.5B_smoke")


def test_compare_proposes_the_run_with_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("gqa_0.5B_smoke/seed_1", "mla_0.5B_smoke"):
        make_record().write(tmp_path / "output" / "suite" / place / "record.json")
    (tmp_path / "output" / "suite" / "mla_0.5B_smok").mkdir()  # no run
    for word, near in (("gqa_0.5b_smok", "gqa_0.5B_smoke"), ("output/suite/mla_0.5_smoke", "mla_0.5B_smoke")):
        done = CliRunner().invoke(app, ["compare", word, "mla_0.5B_smoke"])
        assert done.exit_code == 2
        refused = " ".join(done.stderr.replace("│", " ").split())
        assert f"{word}: there is no such folder; did you mean {near}?" in refused
