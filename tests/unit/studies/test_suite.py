"""What a study is asked, and in which words a wrong question is refused before anything is trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tiny_studies import write_study
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.costs.model import flops_per_token
from efficientbench.studies.forecast import within_budget
from efficientbench.studies.study import Question, device_hours, planned
from efficientbench.studies.suite import parsed_target, section_of, written
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request

CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)
FEW = {"size": "400k", "tokens_per_parameter": 4}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"sizes": ["8k", "16k"]},
            "study: sizes: 8k, 16k: a ladder needs 3 sizes; the trend of a difference cannot be",
        ),
        ({"variants": ["gqa"]}, "study: variants: gqa: a study compares 2 or more"),
        ({"variants": ["gqa", "mla", "mla"]}, "study: variants: mla is named twice"),
        ({"baseline": "mha"}, "study: baseline: mha is none of the variants gqa, mla"),
        ({"tokens_per_parameter": [20]}, "study: tokens_per_parameter: 20: a ladder needs 2 budgets at each size"),
        ({"variants": ["gqa", "mlaa"]}, "study: variants: the matrix has no variant mlaa: did you mean mla?"),
        ({"sizes": ["8k", "16k", "33k"]}, "study: sizes: the matrix has no size 33k: did you mean 32k?"),
        ({"target": {"size": "8B"}}, "study: sizes: the matrix has no size 8B: "),
        ({"learning_rate": {"at": ["8k", "64k"]}}, "study: learning_rate.at: 64k is none of the sizes 8k, 16k, 32k"),
        ({"learning_rate": {"gqa": {"8k": 1e-3}}}, "study: learning_rate: fixed rates lack gqa_16k, gqa_32k, mla_8k"),
        ({"seeds": 0}, "study: seeds: Input should be greater than or equal to 1"),
        ({"seeds": 10**9}, "study: seeds: Input should be less than or equal to 100"),
        ({"tokens_per_parameter": [8, 1e300]}, "study: tokens_per_parameter: Input should be less than or equal to"),
        (
            {"target": {"size": "64k", "tokens_per_parameter": 1e300}},
            "target: tokens_per_parameter: Input should be less",
        ),
        ({"target": "@20x"}, "target: '@20x' is no size at tokens per parameter, like 1.5B@20x"),
        ({"variants": "gqa, mla"}, "study: variants: 'gqa, mla' is no list: write it in brackets, [one, another]"),
        ({"learning_rate": 3e-3}, "study: learning_rate: '0.003' is neither {at: [50M, 125M], start: 3.0e-3} nor the"),
        ({"learning_rate": {"start": -1}}, "study: learning_rate: start: Input should be greater than 0"),
        ({"learning_rate": {"gqa": {"8k": "no"}}}, "study: learning_rate: gqa: 8k: Input should be a valid number"),
        ({"sedes": 3}, "study: sedes: unknown key; did you mean seeds?"),
        ({"trunk": False}, "study: trunk: unknown key; did you mean trunks?"),
        ({"xyz": 3}, "study: xyz: unknown key; the keys are variants, baseline, sizes, "),
        ({"target": {"size": "64k", "tokens": 3}}, "study: target: tokens: unknown key; the keys are size, "),
        (
            {"learning_rate": {"at": ["8k", "16k"], "strat": 1}},
            "study: learning_rate: strat: unknown key; did you mean",
        ),
        (
            {"learning_rate": {"fixed": {"gqa": {"8k": 1e-3}}}},
            "study: learning_rate: 'fixed' is no variant with a rate for each size: write {at: [50M, 125M], start: "
            "3.0e-3}, or the rate of each variant and size: {gqa: {50M: 3.0e-3}}",
        ),
        ({"learning_rate": {"gqa": 1e-3}}, "study: learning_rate: 'gqa' is no variant with a rate for each size"),
    ],
)
def test_a_wrong_section_is_refused_by_its_word(tmp_path: Path, words: dict[str, Any], message: str) -> None:
    file = write_study(tmp_path / "mine.yaml", **words)
    with pytest.raises(ConfigError, match=re.escape(message)):
        section_of(written(file, {}), file)
    with pytest.raises(ConfigError) as told:
        section_of(written(file, {}), file)
    assert "dict[" not in str(told.value)


@pytest.mark.parametrize(
    ("words", "overrides", "message"),
    [
        (
            {"sizes": ["8k", "16k", "32k"], "target": FEW},
            (),
            "400k is 10.2 times the largest size, 32k; a study reaches",
        ),
        (
            {"tokens_per_parameter": [8, 8.001]},
            (),
            "study: tokens_per_parameter: 8.0 and 8.001 are one budget at 8k, of ",
        ),
        ({"sizes": ["8k", "16k", "16kb"]}, (), "study: sizes: 16k and 16kb are one size, with the same FLOPs"),
        ({}, ("training.steps=9",), "training.steps: study.tokens_per_parameter decides it in a study"),
        ({}, ("lr=1e-3",), "training.learning_rate: study.learning_rate decides it in a study"),
        ({}, ("match_to=mqa",), "match_to: study.baseline decides it in a study"),
        ({}, ("training.seq_lem=64",), "did you mean training.seq_len?"),
        ({}, ("measurement.min_steps=900",), "gqa_8k: training.tokens: "),
        (
            {"variants": ["gqa", "mqa"], "match": "none"},
            ("model.attention.window=64",),
            "gqa_8k: attention 'gqa' does not show in this run",
        ),
    ],
)
def test_a_ladder_that_cannot_tell_is_refused(
    tmp_path: Path, words: dict[str, Any], overrides: tuple[str, ...], message: str
) -> None:
    question = Question(write_study(tmp_path / "mine.yaml", **words), overrides=(f"output={tmp_path}", *overrides))
    with pytest.raises(ConfigError, match=re.escape(message)):
        planned(question, CPU, 1, dry_run=True)
    if "target" in words:
        with pytest.raises(ConfigError, match=r"\(--despite reach\). With 64k as largest it would"):
            planned(question, CPU, 1, dry_run=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gqa,mla", "--smoke"], "these lengths are speed only"),
        (["gqa,mla", "mine.yaml"], "one is named already"),
        (["gqa,mla", "--device", "H100 SXM"], "--device goes with --dry-run"),
        (["gqa,mla", "--dry-run", "--verdict"], "give one of them"),
        (["gqa,mla", "--despite", "raech"], "--despite: raech: a study knows reach alone"),
        (["gqa,mla"], "study: sizes: are missing: name 3 or more in the file, or say with --budget HOURS"),
        (["gqa,mla"], "study: target: is missing: what to decide, like --target 1.5B@20x"),
        (["gqa,mla", "--target", "@20x"], "--target: '@20x' is no size at tokens per parameter"),
        (["/no/such.yaml"], "/no/such.yaml is missing"),
        # 13B does not fit there, and smaller sizes are within reach.
        (
            ["gqa,mla", "--target", "32B@20x", "--budget", "9 device-hours", "--dry-run", "--device", "H100 SXM"],
            "--budget: 9 device-hours: the least ladder of these variants (3 sizes, 2 budgets, 2 seeds) takes ",
        ),
        (
            ["gqa,mla", "--target", "32B@20x", "--budget", "9 device-hours", "--dry-run", "--device", "H100 SXM"]
            + ["training.seq_len=131072"],
            "GB); what would help: training.recompute=full",
        ),
    ],
)
def test_a_wrong_command_line_is_refused(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["study", *words])
    told = str(done.exception) if isinstance(done.exception, ConfigError) else done.output
    assert done.exit_code != 0
    assert message in re.sub(r"[\s│]+", " ", told), told


@pytest.mark.parametrize("how", ["--verdict", "--dry-run"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", "many"], "--jobs: 'many' is neither auto nor a number"),
        (["output=afile"], "/afile is a file; give a"),
    ],
)
def test_a_word_that_training_refuses_is_refused_where_nothing_trains(
    how: str, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").touch()
    file = write_study(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["study", str(file), how, *words], catch_exceptions=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "mine.yaml is empty: its keys are sizes, variants, "),
        ("study:", "mine.yaml: has no section study, with variants, sizes and target"),
        ("study: {}", "mine.yaml: has no section study, with variants, sizes and target"),
        ("study: {seeds: 2}", "mine.yaml: study: variants: are missing: name 2 or more"),
    ],
)
def test_a_file_without_variants_says_what_a_study_needs(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as told:
        Question(file).words()
    assert str(told.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("studdy", "mine.yaml: studdy: unknown key; did you mean study?"),
        (
            "data",
            "mine.yaml: data: unknown key; the keys are sizes, variants, adjusted, smoke, suites, further, study, "
            "beside; a run's keys stand in a size or a variant, or in the command, like data.path=PATH",
        ),
    ],
)
def test_an_unknown_key_of_a_file_is_answered_by_the_key_that_was_meant(key: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"sizes": {}, key: {"variants": ["gqa", "mla"]}}), encoding="utf-8")
    with pytest.raises(ConfigError) as told:
        Question(file).words()
    assert str(told.value) == message


def test_a_variant_may_be_called_as_the_word_that_unsets_a_key(tmp_path: Path) -> None:
    file = write_study(tmp_path / "mine.yaml", variants=["none", "gqa"], baseline="none")
    plan = planned(Question(file, overrides=(f"output={tmp_path}/suite",)), CPU, 1, dry_run=True)
    assert plan.models["gqa", "8k"].config.match_to == "none"
    assert resolve("gqa_8k", overrides=["match_to=null"], matrix_file=file).match_to is None


def test_a_run_that_its_file_cannot_make_is_named(tmp_path: Path) -> None:
    file = write_study(tmp_path / "mine.yaml", variants=["gqa", "mamba2"])
    with pytest.raises(ConfigError, match=r"^mamba2_8k: model.attention: inner_size 32 is not a multiple of"):
        planned(Question(file, overrides=(f"output={tmp_path}/suite",)), CPU, 1, dry_run=True)


def test_a_subject_is_a_file_or_variants_and_names_the_study(tmp_path: Path) -> None:
    file = write_study(tmp_path / "mine.yaml")
    for subject in (file, str(file)):
        assert (Question(subject).variants, Question(subject).matrix, Question(subject).name) == ((), file, "mine")
    for named in ("gqa, mla,", ["gqa", "mla"]):
        assert (Question(named).variants, Question(named).name) == (("gqa", "mla"), "study_gqa_mla")


def test_a_target_and_a_budget_are_read_from_text() -> None:
    assert parsed_target("1.5B@20x") == {"size": "1.5B", "tokens_per_parameter": 20.0}
    assert parsed_target("1.5B") == {"size": "1.5B"}
    assert [device_hours(text) for text in ("400 device-hours", "1,000h", "2.5 hours")] == [400, 1000, 2.5]
    for text in ("much", "0 h", "400 watts"):
        with pytest.raises(ConfigError, match="is no number of device-hours"):
            device_hours(text)


@pytest.mark.proof
def test_a_budget_pays_for_the_largest_ladder_within_reach_and_names_the_least_it_needs(tmp_path: Path) -> None:
    file = write_study(tmp_path / "mine.yaml")
    target = {"variants": ["gqa", "mla"], "baseline": "gqa", "target": FEW}
    request = Request(matrix=file, overrides=(f"output={tmp_path}",), only=())

    def ladder(hours: float) -> tuple[tuple[str, ...], tuple[float, ...], int]:
        section = within_budget(target, hours, file, request, CPU, 1)
        return section.sizes, section.tokens_per_parameter, section.seeds

    sizes, ratios, seeds = ladder(1e9)
    assert (ratios, seeds) == ((10.0, 20.0, 40.0), 3)
    with pytest.raises(
        ConfigError, match=r"--budget: 1e-09 device-hours: the least ladder .* \(plan of a CPU\)"
    ) as told:
        ladder(1e-9)
    least = float(re.findall(r"takes ([\d.e-]+) ", str(told.value))[0])
    assert ladder(least * 1.01)[1:] == ((10.0, 20.0), 2)
    assert sizes[-1] != "400k"


def test_sizes_that_are_named_stay_where_a_budget_would_choose_others(tmp_path: Path) -> None:
    file = write_study(tmp_path / "mine.yaml")
    content = yaml.safe_load(file.read_text())
    size = content["sizes"]["16k"]
    content["sizes"]["18k"] = size | {"model": size["model"] | {"hidden_size": 36, "head_dim": 18}}
    file.write_text(yaml.safe_dump(content))
    target = {"size": "64k", "tokens_per_parameter": 4}
    words = {"variants": ["gqa", "mqa"], "baseline": "gqa", "sizes": ["16k", "18k", "32k"], "target": target}
    request = Request(matrix=file, overrides=(f"output={tmp_path}",), only=())
    assert within_budget(words, 1e9, file, request, CPU, 1).sizes == ("16k", "18k", "32k")


@pytest.mark.proof
@pytest.mark.parametrize("baseline", ["gqa", "moe"])
def test_the_suite_of_hybrids_is_a_study_with_equal_flops(baseline: str, tmp_path: Path) -> None:
    suite = {run.variant for run in load_matrix().all_runs if run.suite == "hybrids"}
    variants = sorted(name for name in suite if name.startswith("moe") == (baseline == "moe"))
    assert len(variants) == (3 if baseline == "moe" else 9)
    sizes, target = ["50M", "125M", "350M"], {"size": "1.5B", "tokens_per_parameter": 20}
    section = {"variants": variants, "baseline": baseline, "sizes": sizes, "tokens_per_parameter": [10, 20]}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"study": {**section, "target": target}}), encoding="utf-8")
    plan = planned(Question(file, overrides=(f"output={tmp_path}/suite",)), CPU, 1, dry_run=True)
    for size in (*sizes, "1.5B"):
        flops = {name: flops_per_token(plan.models[name, size].config.model, 2048).training for name in variants}
        assert list(flops.values()) == pytest.approx([flops[baseline]] * len(variants), rel=0.01)
