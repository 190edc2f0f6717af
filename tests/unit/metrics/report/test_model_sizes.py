"""A report says what the models of its rows cost beside the baseline's, and names rows of another cost first."""

from __future__ import annotations

from typing import Any

import pytest
from support.metrics_parts import make_record, printed

from efficientbench.config.load import resolve
from efficientbench.costs.model import count_parameters, flops_per_token, kv_cache_bytes_per_token
from efficientbench.metrics.analysis.repeats import model_identity
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.answers import answers_table
from efficientbench.metrics.report.columns import runs_csv
from efficientbench.metrics.report.first_lines import print_answers
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.model_sizes import sizes_table, unmatched
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.suites import Suite, make_rows
from efficientbench.planning.vocabulary import resolve_run

FLOPS = 9.0e9
PARAMETERS = 1_500_000_000


def row(variant: str, parameters: float = 1.0, flops: float = 1.0, **further: Any) -> RunRecord:
    """Return a run whose model has these shares of the baseline's parameters and FLOPs."""
    return make_record(
        {
            **{"variant": variant, "run": f"{variant}_1.5B", "parameters": round(PARAMETERS * parameters)},
            **{"flops_per_token": FLOPS * flops, **further},
            **{"tokens_per_s": 100.0, "config": {"training": {"seed": 1}, "model": {"attention": {"kind": variant}}}},
        }
    )


def real(name: str, *words: str) -> RunRecord:
    config = resolve_run(name, False, words)[0]
    counted = count_parameters(config.model)
    return make_record(
        {
            **{"variant": config.variant, "run": config.name, "config": config.model_dump(mode="json")},
            **{"parameters": counted.total, "parameters_active": counted.active},
            "flops_per_token": float(flops_per_token(config.model, config.training.seq_len).training),
        }
    )


def only(*records: RunRecord) -> Suite:
    [suite] = make_rows(records).suites
    return suite


def test_every_row_has_its_cost_beside_the_baselines() -> None:
    suite = only(*(real(f"{variant}_1.5B") for variant in ("mla", "nsa", "gqa")))
    table = sizes_table([suite])
    first, *others = table.rows
    gqa, mla = resolve("gqa_1.5B").model, resolve("mla_1.5B").model
    assert first[1:3] == ("gqa", f"{count_parameters(gqa).total:,}")
    cells = {line[1]: dict(zip(table.header, line, strict=True)) for line in others}
    assert cells["mla"]["parameters"] == f"{count_parameters(mla).total:,} (+4.1%)"
    assert cells["mla"]["cache B/token"] == f"{kv_cache_bytes_per_token(mla, 'bf16'):,} (-12.5%)"
    assert cells["nsa"]["parameters"].endswith(" (+4.9%)")
    assert cells["nsa"]["cache B/token"].endswith(" (+6.2%)")
    assert unmatched(suite) == ""
    assert sizes_table([only(real("gqa_1.5B"))]).rows == []


def test_a_matched_row_says_what_is_left() -> None:
    matched = real("mla_1.5B", "match=flops", "match_to=gqa")
    table = sizes_table([only(real("gqa_1.5B"), matched)])
    assert [line[-1] for line in table.rows] == ["", "flops of gqa, -0.02% left"]
    assert dict(zip(table.header, table.rows[1], strict=True))["training FLOPs/token"].endswith(" (-0.0%)")
    # A model that needs no other size is the same with and without the key.
    assert model_identity(real("gqa_1.5B")) == model_identity(real("gqa_1.5B", "match=flops", "match_to=gqa"))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"parameters": 1.5, "flops": 1.5}, "nsa has 50.0% more parameters and 50.0% more training FLOPs per token"),
        ({"parameters": 4.0, "flops": 0.5}, "nsa has 300.0% more parameters and 50.0% fewer training FLOPs per token"),
        ({"parameters": 1.5}, ""),
        ({"flops": 1.5}, ""),
        ({"parameters": 1.049, "flops": 1.049}, ""),
    ],
)
def test_rows_of_another_cost_are_the_first_sentence_of_their_line(other: dict[str, float], said: str) -> None:
    suite = only(row("gqa"), row("mla"), row("nsa", **other))
    sentence = f"Models of different cost: {said} than gqa." if said else ""
    assert unmatched(suite) == sentence
    lines = printed(print_answers, [suite]).splitlines()
    assert lines[0] == suite.title
    assert (lines[1] == f"  {sentence}") == bool(said)
    assert answers_table([suite]).rows[0][0] == (f"{suite.title}. {sentence}" if said else suite.title)
    assert (sentence in page(Report(make_rows([each.record for each in suite.rows])))) or not said


def test_two_rows_on_both_sides_of_the_baseline_are_named_too() -> None:
    suite = only(row("gqa"), row("mla", 0.97, 0.97), row("nsa", 1.04, 1.04))
    assert unmatched(suite) == (
        "Models of different cost: mla has 6.7% fewer parameters and 6.7% fewer training FLOPs per token than nsa."
    )


def test_a_cache_that_is_not_known_is_absent() -> None:
    outside = real("gqa_1.5B")
    outside.config["model"]["attention"]["kind"] = "nowhere:VARIANT"
    table = sizes_table([only(real("gqa_1.5B"), outside.model_copy(update={"variant": "mqa", "run": "mqa_1.5B"}))])
    assert [line[5] for line in table.rows] == [
        f"{kv_cache_bytes_per_token(resolve('gqa_1.5B').model, 'bf16'):,}",
        "n/a",
    ]
    assert ",28672," in runs_csv([real("gqa_1.5B")]).splitlines()[1]
