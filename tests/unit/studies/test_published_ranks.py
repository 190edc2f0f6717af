"""What is counted in EfficientLLM's published ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.published_ranks import (
    MECHANISMS,
    SHEET,
    SITE,
    WITHOUT_ATTENTION,
    beside,
    beside_ladder,
    pairs,
    read,
    row,
    sources_apart,
    without_order,
)


@pytest.fixture(scope="module")
def ranks(shared_data: Path) -> Path:
    return shared_data / "public_runs" / "efficientllm_ranks.csv"


def test_pairs_are_counted_by_the_order_of_both_ranks() -> None:
    assert pairs({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "c": 2}) == (2, 1, 0)
    assert pairs({"a": 1, "b": 2}, {"a": 2, "b": 2}) == (0, 0, 1)


def test_first_in_latency_and_last_in_throughput_is_found(ranks: Path) -> None:
    found = read(ranks)
    assert len(found[SITE]) == len(found[SHEET]) == 10
    rows = [row(group, of) for group, of in found[SITE].items()]
    both = {each["group"]: each["first in latency and last in throughput"] for each in rows}
    assert {name for name in both.values() if name != "none"} == {"Dense Model 3B", "Mamba", "Freeze", "float16"}
    assert [each["in opposite orders"] for each in rows] == ["0", "0", "6", "5", "6", "1", "5", "3", "3", "3"]


def test_both_sources_have_the_same_ranks_and_three_columns_have_no_order(ranks: Path) -> None:
    found = read(ranks)
    assert sources_apart(found) == (260, 0)
    assert len(without_order(found[SITE])) == 3


def test_our_suite_stands_beside_the_group_without_attention(ranks: Path) -> None:
    rows = beside(next(of for (_, group), of in read(ranks)[SITE].items() if group == WITHOUT_ATTENTION))
    assert [row["there"] for row in rows] == ["Transformer", "Mamba", "Pythia", "RWKV"]
    assert rows[1] == {"there": "Mamba", "here": "`mamba2`, its successor", **rows[1]}
    assert [[row[metric] for row in rows] for metric in ("AL", "TT")] == [["4", "1", "3", "2"], ["1", "4", "3", "2"]]
    # Each method has one rank in ST and in IT: they order nothing.
    assert not {"ST", "IT"} & rows[0].keys()


def test_our_ladder_stands_beside_the_ranks_of_gqa_and_mla(ranks: Path) -> None:
    of = next(of for (_, group), of in read(ranks)[SITE].items() if group == MECHANISMS)
    sure = {"variant": "mla", "predicted": 0.2, "low": 0.1, "high": 0.3, "judged": 0.2}
    sure |= {"time": 1.2, "time_low": 1.1, "time_high": 1.3, "judged_by_seed": [0.1, 0.2, 0.3]}
    unsure = sure | {"low": -0.1, "high": 0.5, "time_low": 0.9, "judged_by_seed": [0.1, 0.2, -0.3]}
    rows = beside_ladder(of, [{"rows": [each]} for each in (sure, unsure)])
    # MLA is first there in performance and third in latency, GQA third and second.
    assert [(row["metric"], row["order"], row["trained there"]) for row in rows] == [
        ("Performance", "opposite", "+0.200: opposite"),
        ("AL", "the same", "–"),
        ("Performance", "cannot be told", "+0.200: cannot be told"),
        ("AL", "cannot be told", "–"),
    ]
    assert rows[1]["MLA against GQA, by the ladder"] == "+20% of time (+10% to +30%)"
