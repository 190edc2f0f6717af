"""Comparisons: what may be compared, what is printed, the cost to a quality."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record, printed

from efficientbench.metrics import MetricsError
from efficientbench.metrics.analysis.compare import compare, compare_folders
from efficientbench.metrics.analysis.conditions import (
    changed_keys,
    comparison_key,
    differences,
    group,
    shared_conditions,
)
from efficientbench.metrics.analysis.repeats import Group, combine, group_repeats, load_group, load_neighbours
from efficientbench.metrics.formulas.ratio import NO_INTERVAL
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.record_parts import DataSource, QualityPoint
from efficientbench.metrics.report.comparison import print_comparison, print_spread

CONFIG = {
    "variant": "gqa",
    "size": "1.5B",
    "model": {"layers": 4, "attention": {"kind": "gqa"}, "position": {"kind": "rope"}},
    "training": {"seed": 1, "learning_rate": 0.1},
    "data": {"path": None, "cache": "here", "split": [99, 1, 0]},
}


def run_of(
    name: str = "gqa",
    seed: int = 1,
    attention: str = "gqa",
    learning_rate: float = 0.1,
    parallel: Mapping[str, Any] | None = None,
    **figures: Any,
) -> RunRecord:
    config = {
        **CONFIG,
        "parallel": parallel or {},
        "variant": name,
        "model": {**CONFIG["model"], "attention": {"kind": attention}},
        "training": {"seed": seed, "learning_rate": learning_rate},
    }
    measured = {"al_s": 0.1, "al_s_ci_low": 0.098, "al_s_ci_high": 0.102, "tokens_per_s": 1000.0, "tokens": 1000}
    known = {"steps_measured": 10, "validation_loss": 4.0, "validation_loss_se": 0.02}
    names = {"run": f"{name}_1.5B", "variant": name, "seed": seed, "config": config}
    return make_record({**measured, **known, **names, **figures})


def group_of(*records: RunRecord) -> Group:
    (group,) = group_repeats(records)
    return group


def test_repeats_differ_only_in_their_seed() -> None:
    records = [run_of(seed=2), run_of(seed=1), run_of("rope"), run_of(learning_rate=0.2), run_of(device_name="other")]
    groups = group_repeats(records)
    assert [[(r.run, r.seed) for r in group.records] for group in groups] == [
        [("gqa_1.5B", 1), ("gqa_1.5B", 2)],
        [("rope_1.5B", 1)],
        [("gqa_1.5B", 1)],
        [("gqa_1.5B", 1)],
    ]


def test_rows_with_and_without_attention_within_documents_are_no_line() -> None:
    across = run_of(flops_per_token=100.0)
    within = [
        run_of(
            seed=seed,
            flops_per_token=80.0 + seed,
            config={**run_of(seed=seed).config, "data": {**CONFIG["data"], "attention_within_documents": True}},
        )
        for seed in (1, 2)
    ]
    [found] = differences(across, within[0])
    assert (found.condition, found.other) == ("data", f"{found.one}, attention within documents")
    assert group(across) != group(within[0])
    # Seeds read other documents, and so compute other FLOPs.
    assert [len(each.records) for each in group_repeats([across, *within])] == [1, 2]


def test_the_interval_of_repeats_is_students() -> None:
    spread = group_of(*(run_of(seed=seed, al_s=al_s) for seed, al_s in enumerate((1.0, 2.0, 3.0)))).spread("al_s")
    assert (spread.mean, spread.std) == (2.0, 1.0)
    assert spread.high == pytest.approx(2 + 4.302653 / math.sqrt(3))
    single = group_of(run_of()).spread("al_s")
    assert (single.low, single.std) == (None, None)
    assert group_of(run_of()).spread("mfu") is None


DATA = [DataSource(source="text", weight=1.0, documents=1, tokens=9, fingerprint="aa", tokenizer_fingerprint="t")]


@pytest.mark.parametrize(
    ("figures", "condition"),
    [
        ({"device_name": "Trace 1"}, "device"),
        ({"devices": 2, "dp": 1}, "device"),
        ({"dtype": "fp32"}, "dtype"),
        ({"tokens": 999}, "tokens"),
        ({"supervised_tokens": 10}, "tokens"),
        ({"seq_len": 4096}, "sequence"),
        ({"data": [replace(DATA[0], fingerprint="bb")]}, "data"),
        ({"global_batch_size": 8}, "global_batch"),
        (
            {"config": {**run_of().config, "training": {**run_of().config["training"], "optimizer": "muon"}}},
            "optimizer",
        ),
        ({"tp": 2}, "layout"),
        ({"micro_batch_size": 1}, "layout"),
        ({"energy_scope": "gpu"}, "energy_scope"),
        ({"kernels": {"attention": "math"}}, "kernels"),
        ({"fallback_kernels": {"attention": "flash is not installed"}}, "kernels"),
        (
            {"config": {**run_of().config, "training": {"seed": 1, "learning_rate": 0.1, "deterministic": True}}},
            "kernels",
        ),
        ({"formula_id": "another"}, "formulas"),
    ],
)
def test_different_conditions_are_named_and_refused_unless_allowed(figures: dict[str, Any], condition: str) -> None:
    first, second = group_of(run_of(data=DATA)), group_of(run_of(**{"data": DATA, **figures}))
    with pytest.raises(MetricsError, match=f"{condition}: .* against .*--despite {condition}$"):
        compare(first, second)
    assert [difference.condition for difference in compare(first, second, [condition]).despite] == [condition]


def test_equal_data_under_another_name_are_no_difference_and_other_data_are_named() -> None:
    def read(source: str, fingerprint: str) -> Group:
        return group_of(run_of(data=[replace(DATA[0], source=source, fingerprint=fingerprint)]))

    assert compare(read("a.jsonl", "aa"), read("b.jsonl", "aa")).despite == ()
    assert comparison_key(read("a.jsonl", "aa").first) == comparison_key(read("b.jsonl", "aa").first)
    with pytest.raises(MetricsError, match=r"data: 1 a\.jsonl \(aa\), .* against 1 b\.jsonl \(bb\), "):
        compare(read("a.jsonl", "aa"), read("b.jsonl", "bb"))


@pytest.mark.parametrize(
    ("resumed", "init"), [([65], {}), ([], {"init": {"state": "everything", "run": "trunk", "step": 65}})]
)
def test_all_tokens_of_a_run_that_measures_its_last_steps_alone_are_its_length(
    resumed: list[int], init: dict[str, Any]
) -> None:
    config = {**run_of().config, "measurement": {"warmup_steps": 1}}
    whole = group_of(run_of(config=config, tokens=990, steps_measured=99, tokens_trained=1000))

    def late(tokens_trained: int) -> Group:
        measured = {"tokens": 300, "steps_measured": 30, "resumed_after_steps": resumed}
        return group_of(run_of(config=config | init, tokens_trained=tokens_trained, **measured))

    found = compare(whole, late(1000), list(init))
    assert [difference.condition for difference in found.despite] == list(init)
    with pytest.raises(MetricsError, match="tokens: 1,000 trained on, 1 step of warm-up against 900 trained on"):
        compare(whole, late(900), list(init))


def test_overlap_is_a_condition_where_replicas_communicate() -> None:
    """A single device sends nothing, and records older than the key communicated without overlap."""

    def runs(**figures: Any) -> list[RunRecord]:
        sections: list[dict[str, Any]] = [
            {},
            {"overlap": False},
            {"overlap": True},
            {"overlap": True, "bucket_size": 9},
        ]
        return [run_of(**figures, parallel=section) for section in sections]

    alone = runs()
    assert [differences(alone[0], other) for other in alone] == [[], [], [], []]
    old, without, overlapped, small = runs(dp=2)
    assert differences(old, without) == []
    assert [each.condition for each in differences(without, overlapped)] == ["layout"]
    assert [each.condition for each in differences(overlapped, small)] == ["layout"]
    assert (group(old) == group(without), group(without) == group(overlapped)) == (True, False)
    texts = [shared_conditions(each) for each in (without, overlapped)]
    assert [name for name in texts[0] if texts[0][name] != texts[1][name]] == ["layout"]


def test_an_unknown_condition_is_refused() -> None:
    with pytest.raises(MetricsError, match="speed is no condition of a comparison: they are device, dtype"):
        compare(group_of(run_of()), group_of(run_of()), ["speed"])


def test_attention_kernels_of_two_variants_are_no_difference_but_a_fallback_is() -> None:
    dense = run_of(kernels={"attention": "flash", "norm": "torch"})
    relative = run_of("mla", attention="mla", kernels={"attention": "flex", "norm": "torch"})
    sparse = run_of("nsa", attention="nsa", kernels={"nsa_selection": "fla", "norm": "torch"})
    slow = run_of("nsa", attention="nsa", kernels={"nsa_selection": "tiles", "norm": "torch"}, fallback_kernels={
        "nsa_selection": "fla-core is not installed"
    })  # fmt: skip
    other_norm = run_of("mla", attention="mla", kernels={"attention": "flex", "norm": "slow"})
    fallback = "kernels: nsa_selection: no such part against tiles (a fallback: fla-core is not installed)"
    for one, other, expected in (
        (dense, relative, []),
        (dense, sparse, []),
        (dense, slow, [fallback]),
        (dense, other_norm, ["kernels: norm: torch against slow"]),
        (slow, slow, []),
    ):
        assert [str(difference) for difference in differences(one, other)] == expected


def test_a_comparison_names_differences_and_missing_figures() -> None:
    comparison = compare(group_of(run_of(amu_gb=2.0)), group_of(run_of("mla", attention="mla", al_s=0.11, amu_gb=3.0)))
    by_name = {ratio.metric: ratio for ratio in comparison.ratios}
    assert (by_name["al_s"].first, by_name["al_s"].second, by_name["amu_gb"].ratio) == pytest.approx((0.1, 0.11, 1.5))
    assert (by_name["al_s"].low, by_name["al_s"].basis) == (None, NO_INTERVAL)
    assert comparison.model_changes == {"model.attention.kind": ("gqa", "mla")}
    assert comparison.unavailable["mfu"] == "gqa_1.5B: not part of this test"
    assert not comparison.identical
    assert compare(group_of(run_of()), group_of(run_of("rope", al_s=0.108))).identical


def test_a_comparison_prints_the_means_that_reports_print() -> None:
    sides = [
        Group(tuple(run_of(name, seed=seed, amu_gb=value) for seed, value in enumerate(values)))
        for name, values in (("gqa", (1.0, 4.0)), ("mla", (2.0, 2.0)))
    ]
    comparison = compare(*sides)
    [ratio] = [each for each in comparison.ratios if each.metric == "amu_gb"]
    assert (ratio.first, ratio.second) == tuple(combine(side).amu_gb for side in sides) == (2.5, 2.0)
    assert ratio.ratio == pytest.approx(1.0)
    said = "A and B are means of the runs, as in reports; B/A is the ratio of their geometric means."
    assert said in printed(print_comparison, comparison, width=300)
    same = compare(sides[0], sides[0])
    assert said not in printed(print_comparison, same, width=300)


def test_a_setting_that_a_condition_covers_is_reported_once() -> None:
    first = run_of()
    training = {**first.config["training"], "optimizer": "muon", "epochs": 1, "global_batch_tokens": 32_768}
    second = run_of(config={**first.config, "training": training})
    comparison = compare(group_of(first), group_of(second), ["optimizer"])
    assert [difference.condition for difference in comparison.despite] == ["optimizer"]
    assert comparison.other_changes == {}


def test_a_batch_in_tokens_is_the_same_configuration() -> None:
    first = run_of(seed=1)
    training = {"seed": 2, "learning_rate": 0.1, "global_batch_tokens": 32_768}
    assert len(group_repeats([first, run_of(seed=2, config={**first.config, "training": training})])) == 1


def test_records_older_than_a_key_group_with_records_that_have_it() -> None:
    """A key's default is what earlier versions did; a key that is unset by default did not exist in them."""
    old = run_of(seed=1)
    training = {"seed": 2, "learning_rate": 0.1, "optimizer": "adamw", "epochs": None}
    now = {**old.config, "training": training, "evaluation": {"core_every": 0, "core_data": None, "core_limit": 100}}
    assert len(group_repeats([old, run_of(seed=2, config=now)])) == 1
    assert compare(group_of(old), group_of(run_of(seed=2, config=now))).other_changes == {}
    assert compare(group_of(old), group_of(run_of(seed=2, config={**now, "wandb": "project"}))).other_changes == {}
    experts: dict[str, Any] = {"experts": 8, "auxiliary_loss": 0.01}
    sides = [{**old.config, "model": {"moe": {**experts, **key}}} for key in ({}, {"auxiliary_over": "micro_batch"})]
    assert changed_keys(*(run_of(config=side) for side in sides)) == {}
    # A model without experts has no such key, whatever their loss is over.
    dense = run_of(config={**old.config, "model": {"moe": None}})
    assert changed_keys(dense, run_of(config=sides[0]))["model.moe.auxiliary_over"] == (None, "micro_batch")
    scored = {**now, "evaluation": {"core_every": 10, "core_data": "here", "core_limit": 100}}
    assert len(group_repeats([old, run_of(seed=2, config=scored)])) == 2


def curve(shift: float, watts: float = 50.0) -> list[QualityPoint]:
    """Loss falls by 1 with each doubling of the tokens, 1,000 tokens/s; four batches validate."""
    return [
        QualityPoint(step=2**i, tokens=1000 * 2**i, loss=8.0 + shift - i, loss_se=0.01, loss_se_values=4,
                     measured_tokens=1000 * 2**i, train_s=2.0**i, energy_j=watts * 2.0**i) for i in range(5)
    ]  # fmt: skip


def test_the_cost_to_a_loss_has_its_interval() -> None:
    energy = {"energy_j_per_token": 0.05}
    first = group_of(run_of(quality_curve=curve(0.0), **energy))
    second = group_of(run_of("mla", attention="mla", quality_curve=curve(0.5), **energy))
    comparison = compare(first, second, target_loss=6.0)
    tokens, time_s, energy_j = comparison.costs
    assert (tokens.first, tokens.ratio) == (pytest.approx(4000), pytest.approx(math.sqrt(2)))
    assert energy_j.first == pytest.approx(200)
    # Time is linear in the tokens between two validations, and so its interval is not the tokens' own.
    assert time_s.ratio == pytest.approx(math.sqrt(2), rel=1e-3)
    assert {ratio.verdict for ratio in comparison.costs} == {"no verdict: 1 and 1 runs"}
    assert compare(first, second, target_loss=1.0).unavailable["cost"].startswith("gqa_1.5B did not get to")
    # Surely: the upper end of the interval of four batches.
    assert compare(first, second).target_loss == pytest.approx(4.5 + 3.1824 * 0.01, rel=1e-5)


def test_repeats_give_the_interval_of_a_cost_and_the_noise_of_seeds() -> None:
    first = group_of(*(run_of(seed=s, quality_curve=curve(x), validation_loss=4 + x)
                       for s, x in enumerate((0.0, 0.1, -0.1))))  # fmt: skip
    second = group_of(*(run_of("mla", s, "mla", quality_curve=curve(x), validation_loss=4 + x)
                        for s, x in enumerate((0.05, 0.15, -0.05), 3)))  # fmt: skip
    comparison = compare(first, second, target_loss=6.0)
    assert comparison.costs[0].basis == "3 and 3 repeats"
    assert comparison.costs[0].ratio == pytest.approx(2**0.05)
    assert comparison.speed_only == "the validation losses differ by 0.05, no more than noise (3 and 3 repeats)"
    worse = group_of(*(run_of("mla", s, "mla", validation_loss=5 + x) for s, x in enumerate((0.05, 0.15, -0.05))))
    assert compare(first, worse).speed_only is None


def test_folders_of_runs_and_of_repeats_can_be_compared(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    for seed in (1, 2):
        write_record(run_of(seed=seed), suite / "gqa_1.5B" / f"seed_{seed}" / "record.json")
    write_record(run_of("rope"), suite / "rope_1.5B" / "record.json")
    write_record(run_of("rope", seed=9), suite / "rope_1.5B" / "previous" / "then" / "record.json")
    broken = suite / "broken" / "record.json"
    broken.parent.mkdir()
    broken.write_text("{")
    assert [record.seed for record in load_group(suite / "gqa_1.5B").records] == [1, 2]
    assert load_group(suite / "rope_1.5B").name == "rope_1.5B"
    assert [group.name for group in load_neighbours(suite / "gqa_1.5B")] == ["rope_1.5B"]
    with pytest.raises(MetricsError, match="broken/record.json: damaged"):
        load_group(suite)
    broken.unlink()
    for folder, message in (
        (suite, r"holds 2 groups of runs that .* \(gqa_1.5B, rope_1.5B\): name the folder"),
        (broken.parent, "holds no run's record yet"),
        (suite / "nowhere", "there is no such folder"),
    ):
        with pytest.raises(MetricsError, match=message):
            load_group(folder)


def test_conditions_may_be_named_in_one_text_as_by_the_command(tmp_path: Path) -> None:
    for name, figures in (("gqa", {}), ("rope", {"dtype": "fp32", "tp": 2})):
        write_record(run_of(name, **figures), tmp_path / name / "record.json")
    for despite in ("dtype, layout", ["dtype", "layout"]):
        found = compare_folders(tmp_path / "gqa", tmp_path / "rope", despite=despite)
        assert {difference.condition for difference in found.despite} == {"dtype", "layout"}
    with pytest.raises(MetricsError, match="^dtypes is no condition of a comparison: they are "):
        compare_folders(tmp_path / "gqa", tmp_path / "rope", despite="dtypes")


def test_a_printed_comparison_names_runs_differences_and_figures() -> None:
    twin = group_of(run_of("rope", al_s=0.108))
    first = group_of(run_of(quality_curve=curve(0.0)))
    second = group_of(run_of("mla", attention="mla", dtype="fp32", learning_rate=0.2, quality_curve=curve(0.5)))
    text = printed(print_comparison, compare(first, second, ["dtype"], 6.0, [twin]))
    for shown in (
        "A: gqa_1.5B, B: mla_1.5B, on",
        "model: attention.kind gqa → mla",
        "also different: training.learning_rate 0.1 → 0.2",
        "despite a different dtype: bf16 against fp32",
        "To a validation loss of 6",
        "tokens to it",
        "Intervals, 95 %, each figure's own: one run: use --repeat.",
        "No verdict without the noise between runs: it takes 3 repeats on each side (--repeat 3)",
        "no verdict: 1 and 1 runs",
        "bits/byte; median step, s; peak, torch, GB; peak, device, GB; J/step",
    ):
        assert shown in text, shown


def test_repeats_are_printed_in_the_unit_that_they_name() -> None:
    repeats = group_of(*(run_of(seed=seed, peak_memory_device_bytes=540_000_000) for seed in (1, 2)))
    [row] = [line for line in printed(print_spread, repeats).splitlines() if line.startswith("peak, device, GB")]
    assert row.split()[3:7] == ["0.54", "0.54", "to", "0.54"]


def test_a_configuration_without_a_part_can_be_compared() -> None:
    bare = make_record({"config": {"data": None, "parallel": None, "training": None}})
    assert {each.condition for each in differences(bare, bare)} == set()


@pytest.mark.parametrize(("seeds", "told"), [((7,), "1 run (seed 7)"), ((7, 8), "2 runs (seeds 7, 8)")])
def test_repeats_are_counted_in_words(seeds: tuple[int, ...], told: str) -> None:
    shown = printed(print_spread, Group(tuple(run_of(seed=seed) for seed in seeds)))
    assert shown.strip().splitlines()[0].endswith(f", {told}")
