"""Generation of two models compared: ratios by hand, the verdict against SciPy, and what is not compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from support.generated import BYTES_PER_TOKEN, generation, phase, row
from support.metrics_parts import make_record
from typer.testing import CliRunner

from efficientbench.basics.errors import MetricsError
from efficientbench.cli.app import app
from efficientbench.metrics.analysis.generation import Compared, compare_generation
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.ratio import EQUAL
from efficientbench.metrics.records.generation.generation import GenerationRecord, write_generation
from efficientbench.metrics.records.record import write_record

PREFILL = phase(2.0, 8 * 128, joules=0.5)


def trained(variant: str, *seeds: int) -> Group:
    names = {"run": f"{variant}_1.5B", "variant": variant, "size": "1.5B"}
    return Group(tuple(make_record({**names, "seed": seed}) for seed in seeds or (1,)))


def measured(variant: str, time_s: float, seed: int = 1, joules: float = 3.0, **given: Any) -> GenerationRecord:
    decode = phase(time_s, 8, joules, **given)
    return generation(variant, rows=[row(variant, 128, 8, prefill=PREFILL, decode=decode)], seed=seed)


def compared(first: GenerationRecord, second: GenerationRecord) -> Compared:
    [found] = compare_generation([(trained("gqa"), [first]), (trained("mqa"), [second])])
    return found


def test_ratios_match_hand_counts_and_single_measurements_have_no_verdict() -> None:
    found = compared(measured("gqa", 0.05), measured("mqa", 0.025, joules=1.0))
    ratios = {ratio.metric: ratio for ratio in found.ratios}
    assert ratios["decode_time_s"].ratio == pytest.approx(0.5)
    assert ratios["decode_energy_j_per_token"].ratio == pytest.approx(1 / 3)
    assert ratios["prefill_tokens_per_s"].ratio == pytest.approx(1)
    assert {ratio.verdict for ratio in found.ratios} == {"no verdict: 1 and 1 runs"}
    assert found.cache_bytes == tuple(BYTES_PER_TOKEN[variant] * (128 + 64) for variant in ("gqa", "mqa"))


def test_repeats_are_judged_by_welchs_test_with_holms_correction() -> None:
    times_s = ((0.050, 0.051, 0.052), (0.0400, 0.0402, 0.0405))
    sides = [
        (trained(variant, 0, 1, 2), [measured(variant, each, seed) for seed, each in enumerate(of_variant)])
        for variant, of_variant in zip(("gqa", "mqa"), times_s, strict=True)
    ]
    [found] = compare_generation(sides)
    ratios = {ratio.metric: ratio for ratio in found.ratios}
    logs = [[math.log(each) for each in of_variant] for of_variant in times_s]
    welch = stats.ttest_ind(*logs, equal_var=False).pvalue
    # The other four figures are equal in all runs, which is no noise: they have no verdict, and count for none.
    assert ratios["decode_time_s"].p_value == pytest.approx(welch)
    assert ratios["decode_time_s"].verdict.endswith("% less")
    assert (ratios["ttft_s_p50"].p_value, ratios["ttft_s_p50"].basis) == (None, EQUAL)
    assert ratios["ttft_s_p50"].verdict == "no verdict: 3 and 3 runs"


def test_energy_of_different_parts_or_in_doubt_is_not_compared() -> None:
    first = measured("gqa", 0.05)
    for given, reason in (
        ({"energy_scope": "node"}, "energy is of different parts of the machine: gpu against node"),
        ({"energy_doubt": "one of them is wrong"}, "one of them is wrong"),
    ):
        found = compared(first, measured("mqa", 0.05, **given))
        assert found.missing == {"decode_energy_j_per_token": reason}
    without = generation("mqa", rows=[row("mqa", 128, 8, joules=None)])
    assert set(compared(first, without).missing.values()) == {"no sensor of energy"}


def test_the_command_compares_generation_where_both_runs_measured_it(tmp_path: Path) -> None:
    folders = [tmp_path / variant for variant in ("gqa", "mqa")]
    words = ["compare", *map(str, folders)]
    for folder in folders:
        write_record(trained(folder.name).first, folder / "record.json")
    write_generation(generation("gqa"), folders[0] / "generation.json")
    wide = {"COLUMNS": "160"}
    assert "Generation" not in CliRunner().invoke(app, words, env=wide).output
    with pytest.raises(MetricsError, match="weights is no condition of a comparison"):
        CliRunner().invoke(app, [*words, "--despite", "weights"], catch_exceptions=False)
    write_generation(generation("mqa"), folders[1] / "generation.json")
    text = CliRunner().invoke(app, words, env=wide).output
    assert text.count("Generation, prompts of ") == 6
    assert "cache, MB" in text
    assert "Engine: efficientbench: one static batch" in text
    assert "it takes 3 repeats of each side" in text
    write_generation(generation("mqa", steps="compiled"), folders[1] / "generation.json")
    assert "different conditions: steps: eager against compiled" in CliRunner().invoke(app, words, env=wide).output
    write_generation(generation("mqa", weights="step 500"), folders[1] / "generation.json")
    refused = CliRunner().invoke(app, words, env=wide)
    assert refused.exit_code == 0
    assert (
        "n/a generation: generation was measured under different conditions: weights: random against" in refused.output
    )
    allowed = CliRunner().invoke(app, [*words, "--despite", "weights"], env=wide)
    assert allowed.output.count("Generation, prompts of ") == 6
