"""Evaluations paired by item, against scipy's tests and counts by hand."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from efficientbench.metrics.analysis.paired import mcnemar, pair_evaluations
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.report.evaluations import print_evaluations


def write(folder: Path, task: str, items: Sequence[Mapping[str, Any]]) -> None:
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    lines = [{"format": 1, "task": task}, *items]
    (folder / "evaluation" / f"{task}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def answers(rights: Sequence[bool], name: str = "test") -> list[dict[str, Any]]:
    return [
        {"item": f"{name}/{number}", "prompt_sha256": str(number), "right": right}
        for number, right in enumerate(rights)
    ]


@pytest.mark.parametrize(("one", "other"), [(0, 0), (0, 6), (3, 9), (50, 50), (400, 480), (0, 2000)])
def test_mcnemar_is_the_binomial_test(one: int, other: int) -> None:
    wanted = stats.binomtest(one, one + other).pvalue if one + other else 1.0
    assert mcnemar(one, other) == pytest.approx(wanted, rel=1e-9)


def test_accuracies_are_paired_by_prompt(tmp_path: Path) -> None:
    generator = random.Random(1)
    ours = [generator.random() < 0.4 for _ in range(300)]
    theirs = [right or generator.random() < 0.2 for right in ours]
    given = answers(theirs)
    given[7]["prompt_sha256"] = "another"
    write(tmp_path / "a", "mmlu", answers(ours))
    write(tmp_path / "b", "mmlu", given)
    write(tmp_path / "b", "gsm8k", given)
    [found] = pair_evaluations(tmp_path / "a", tmp_path / "b")
    kept = [number for number in range(300) if number != 7]
    assert (found.name, found.items, found.unpaired) == ("mmlu", 299, 1)
    assert found.first == sum(ours[number] for number in kept) / 299
    assert found.difference == pytest.approx(found.second - found.first)
    only = sum(theirs[number] and not ours[number] for number in kept)
    assert found.p == pytest.approx(stats.binomtest(0, only).pvalue)
    assert 0 < found.low < found.difference < found.high
    assert found.verdict == "differs"


def test_intervals_hold_what_they_promise() -> None:
    from efficientbench.metrics.analysis.paired import _accuracy

    generator = np.random.default_rng(2)
    inside = 0
    for _ in range(1000):
        shared, own = generator.random(60), generator.random((60, 2))
        rights = [(s < 0.3 or o[0] < 0.2, s < 0.3 or o[1] < 0.35) for s, o in zip(shared, own, strict=True)]
        found = _accuracy("x", [(bool(one), bool(other)) for one, other in rights], 0)
        inside += found.low <= 0.7 * (0.35 - 0.2) <= found.high
    assert 930 <= inside <= 985


def test_losses_are_paired_by_document(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    tokens = generator.integers(5, 90, 40)
    ours = tokens * generator.normal(3, 0.5, 40)
    theirs = ours + tokens * generator.normal(-0.02, 0.05, 40)
    for folder, sums in (("a", ours), ("b", theirs)):
        rows = [
            {"item": f"document/{number}", "prompt_sha256": str(number), "tokens": int(size), "loss_sum": float(loss)}
            for number, (size, loss) in enumerate(zip(tokens, sums, strict=True))
        ]
        write(tmp_path / folder, "loss", rows)
    [found] = pair_evaluations(tmp_path / "a", tmp_path / "b")
    assert found.difference == pytest.approx((theirs.sum() - ours.sum()) / tokens.sum())
    resampled = []
    for _ in range(2000):
        chosen = generator.integers(0, 40, 40)
        resampled.append((theirs[chosen].sum() - ours[chosen].sum()) / tokens[chosen].sum())
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(np.std(resampled), rel=0.15)
    # The same losses of other tokens are not compared.
    rows[3]["tokens"] += 1
    write(tmp_path / "b", "loss", rows)
    assert pair_evaluations(tmp_path / "a", tmp_path / "b") == []


def test_cores_tasks_are_judged_together(tmp_path: Path) -> None:
    rights = {"copa": ([True] * 20, [False] * 8 + [True] * 12), "piqa": ([True, False] * 10, [False, True] * 10)}
    for place, folder in enumerate(("a", "b")):
        write(tmp_path / folder, "core", [row for name, both in rights.items() for row in answers(both[place], name)])
    copa, piqa = pair_evaluations(tmp_path / "a", tmp_path / "b")
    assert (copa.name, piqa.name) == ("core: copa", "core: piqa")
    assert copa.p == pytest.approx(2 * stats.binomtest(0, 8).pvalue)
    assert piqa.p == 1
    out = io.StringIO()
    print_evaluations([copa, piqa], Console(file=out, width=120))
    lines = out.getvalue().splitlines()
    assert any(line.split()[:6] == ["core:", "copa", "20", "100.0%", "60.0%", "-40.0%"] for line in lines), lines
    assert any("no difference shown" in line for line in lines)
    assert math.isclose(copa.difference, -0.4)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", "mmlu", answers([True]))
    write(tmp_path / "b", "mmlu", answers([True]))
    path = tmp_path / "b" / "evaluation" / "mmlu.jsonl"
    path.write_text(path.read_text() + "{}\n" + '{"item": "torn')
    with pytest.raises(MetricsError, match=r"mmlu\.jsonl, line 3: it is no result of an item"):
        pair_evaluations(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("item", ['{"item": "0", "loss_sum": 2.5}', '{"item": "0", "loss_sum": 1e999, "tokens": 3}'])
def test_a_document_without_its_loss_is_told(item: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "loss.jsonl").write_text("{}\n" + f"{item}\n" * 2)
    with pytest.raises(MetricsError, match=r"loss\.jsonl, line 2: it is no result of an item"):
        pair_evaluations(tmp_path, tmp_path)
