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

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.paired import Evaluations, Paired, mcnemar, pair_evaluations
from efficientbench.metrics.records.evaluation import write_evaluation
from efficientbench.metrics.report.sections.evaluations import print_evaluations


def write(folder: Path, task: str, items: Sequence[Mapping[str, Any]], **header: Any) -> None:
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    lines = [{"format": 1, "task": task, **header}, *items]
    (folder / "evaluation" / f"{task}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def answers(rights: Sequence[bool], name: str = "test") -> list[dict[str, Any]]:
    return [
        {"item": f"{name}/{number}", "prompt_sha256": str(number), "right": right}
        for number, right in enumerate(rights)
    ]


def printed(evaluations: Evaluations) -> str:
    out = io.StringIO()
    print_evaluations(evaluations, Console(file=out, width=120))
    return out.getvalue()


def of_losses(folder: Path, sides: Sequence[Sequence[float]], tokens: int) -> Paired:
    for place, losses in enumerate(sides):
        rows = [
            {"item": f"document/{n}", "prompt_sha256": str(n), "tokens": tokens, "loss_sum": loss * tokens}
            for n, loss in enumerate(losses)
        ]
        write(folder / str(place), "loss", rows)
    [found] = pair_evaluations(folder / "0", folder / "1").paired
    return found


@pytest.mark.parametrize(("one", "other"), [(0, 0), (0, 6), (3, 9), (50, 50), (400, 480), (0, 2000)])
def test_mcnemars_test_matches_the_binomial_test(one: int, other: int) -> None:
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
    [found] = pair_evaluations(tmp_path / "a", tmp_path / "b").paired
    kept = [number for number in range(300) if number != 7]
    assert (found.name, found.items, found.unpaired) == ("mmlu", 299, 1)
    assert found.first == sum(ours[number] for number in kept) / 299
    assert found.difference == pytest.approx(found.second - found.first)
    only = sum(theirs[number] and not ours[number] for number in kept)
    assert found.p == pytest.approx(stats.binomtest(0, only).pvalue)
    assert 0 < found.low < found.difference < found.high
    assert found.verdict == "checkpoints differ"


def test_intervals_of_paired_accuracies_cover_the_truth_in_95_percent() -> None:
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
    [found] = pair_evaluations(tmp_path / "a", tmp_path / "b").paired
    assert found.difference == pytest.approx((theirs.sum() - ours.sum()) / tokens.sum())
    resampled = []
    for _ in range(2000):
        chosen = generator.integers(0, 40, 40)
        resampled.append((theirs[chosen].sum() - ours[chosen].sum()) / tokens[chosen].sum())
    margin = float(stats.t(39).ppf(0.975))
    assert (found.high - found.low) / (2 * margin) == pytest.approx(np.std(resampled), rel=0.15)
    # The same in bits, over bytes.
    sizes = tokens * 4 + 1
    for folder, sums in (("a", ours), ("b", theirs)):
        by_bytes = [
            {**row, "loss_sum": float(loss), "utf8_bytes": int(size)}
            for row, loss, size in zip(rows, sums, sizes, strict=True)
        ]
        write(tmp_path / folder, "loss", by_bytes)
    nats, bits = pair_evaluations(tmp_path / "a", tmp_path / "b").paired
    assert (bits.name, bits.unit, bits.unpaired) == ("loss, bits per byte", "bits", 0)
    assert bits.difference == pytest.approx((theirs.sum() - ours.sum()) / sizes.sum() / math.log(2))
    # Both are one figure: neither is corrected for the other.
    assert nats.p == found.p
    # The same losses of other tokens are not compared.
    rows[3]["tokens"] += 1
    write(tmp_path / "b", "loss", rows)
    refused = pair_evaluations(tmp_path / "a", tmp_path / "b")
    assert refused == Evaluations((), ("loss: not paired, as the same documents have other tokens",))
    assert refused.notes[0] in printed(refused)


def test_tasks_of_core_are_judged_together(tmp_path: Path) -> None:
    rights = {"copa": ([True] * 20, [False] * 8 + [True] * 12), "piqa": ([True, False] * 10, [False, True] * 10)}
    for place, folder in enumerate(("a", "b")):
        write(tmp_path / folder, "core", [row for name, both in rights.items() for row in answers(both[place], name)])
    evaluations = pair_evaluations(tmp_path / "a", tmp_path / "b")
    copa, piqa = evaluations.paired
    assert (copa.name, piqa.name) == ("core: copa", "core: piqa")
    assert copa.p == pytest.approx(2 * stats.binomtest(0, 8).pvalue)
    assert piqa.p == 1
    lines = printed(evaluations).splitlines()
    assert any(line.split()[:6] == ["core:", "copa", "20", "100.0%", "60.0%", "-40.0%"] for line in lines), lines
    assert any("no difference shown" in line for line in lines)
    assert math.isclose(copa.difference, -0.4)


def test_core_itself_is_the_mean_of_its_centred_tasks(tmp_path: Path) -> None:
    rights = {"copa": ([True] * 20, [False] * 8 + [True] * 12), "piqa": ([True] * 8 + [False] * 2, [True] * 10)}
    baselines = {"copa": 0.5, "piqa": 0.25}
    for place, folder in enumerate("ab"):
        write(tmp_path / folder, "core", [row for name, both in rights.items() for row in answers(both[place], name)])
        parts = {name: {"baseline": chance} for name, chance in baselines.items()}
        summary = {"figures": {"core": 0.5}, "parts": {**parts, "contamination": 3}}
        write_evaluation(summary, tmp_path / folder / "evaluation" / "core.json")
    core, copa, piqa = pair_evaluations(tmp_path / "a", tmp_path / "b").paired
    assert (core.name, core.items, copa.name) == ("core", 30, "core: copa")
    before, after = ((1 + 0.55 / 0.75) / 2, (0.1 / 0.5 + 1) / 2)
    assert (core.first, core.second, core.difference) == pytest.approx((before, after, after - before))
    halves = [(each.high - each.low) / 2 for each in (copa, piqa)]
    margin = math.hypot(halves[0] / 0.5, halves[1] / 0.75) / 2
    assert (core.low, core.high) == pytest.approx((core.difference - margin, core.difference + margin))
    # The p value of three together by Holm, of which copa's is the least.
    alone = 2 * stats.norm.sf(abs(core.difference) / (margin / 1.959964))
    assert copa.p < core.p == pytest.approx(2 * alone)
    path = tmp_path / "b" / "evaluation" / "core.json"
    write_evaluation({"figures": {"core": None}, "parts": {}}, path)
    assert len(pair_evaluations(tmp_path / "a", tmp_path / "b").paired) == 2
    write_evaluation({"figures": {}, "parts": {}}, path)
    with pytest.raises(MetricsError, match=r"core\.json: one of them is no summary of core"):
        pair_evaluations(tmp_path / "a", tmp_path / "b")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", "mmlu", answers([True]))
    write(tmp_path / "b", "mmlu", answers([True]))
    path = tmp_path / "b" / "evaluation" / "mmlu.jsonl"
    path.write_text(path.read_text() + "{}\n" + '{"item": "torn')
    with pytest.raises(MetricsError, match=r"mmlu\.jsonl, line 3: it is no result of an item"):
        pair_evaluations(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    "item",
    [
        '{"item": "0", "loss_sum": 2.5}',
        '{"item": "0", "loss_sum": 1e999, "tokens": 3}',
        '{"item": "0", "loss_sum": 1e300, "tokens": 3}',
        f'{{"item": "0", "loss_sum": 2.5, "tokens": {10**400}}}',
    ],
)
def test_a_document_without_a_loss_is_named(item: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "loss.jsonl").write_text("{}\n" + f"{item}\n" * 2)
    with pytest.raises(MetricsError, match=r"loss\.jsonl, line 2: it is no result of an item"):
        pair_evaluations(tmp_path, tmp_path)


def test_names_of_items_cannot_control_a_terminal(tmp_path: Path) -> None:
    for folder in "ab":
        write(tmp_path / folder, "core", answers([True, False], "\ud800\x1b[2J"))
    evaluations = pair_evaluations(tmp_path / "a", tmp_path / "b")
    assert [each.items for each in evaluations.paired] == [2]
    shown = printed(evaluations)
    assert shown.encode()
    assert "\x1b" not in shown


def test_a_few_documents_have_a_wide_interval(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    sides = generator.normal(3, 0.5, (2, 4))
    found = of_losses(tmp_path, sides.tolist(), 10)
    wanted = stats.ttest_rel(sides[1], sides[0])
    assert found.p == pytest.approx(wanted.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(wanted.confidence_interval(0.95)))


def test_intervals_of_four_documents_cover_the_truth_in_95_percent() -> None:
    from efficientbench.metrics.analysis.paired import _means

    generator = np.random.default_rng(5)
    inside = 0
    for _ in range(1000):
        ours = generator.normal(3, 0.5, 4)
        theirs = ours + generator.normal(0.1, 0.2, 4)
        [found] = _means("loss", "nats", list(zip(ours.tolist(), theirs.tolist(), strict=True)), [1] * 4, 0)
        inside += found.low <= 0.1 <= found.high
    assert 930 <= inside <= 970


def test_several_samples_are_compared_by_their_means(tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    scores = (generator.random((2, 30, 8)) < np.array([0.3, 0.6])[:, None, None]).astype(float)
    for folder, of_run in zip("ab", scores.tolist(), strict=True):
        rows = [
            {"item": f"row/{n}", "prompt_sha256": str(n), "right": each[0] == 1, "scores": each}
            for n, each in enumerate(of_run)
        ]
        write(tmp_path / folder, "gsm8k", rows)
    [found] = pair_evaluations(tmp_path / "a", tmp_path / "b").paired
    means = scores.mean(axis=2)
    assert (found.first, found.second) == pytest.approx(tuple(means.mean(axis=1)))
    assert found.p == pytest.approx(stats.ttest_rel(means[1], means[0]).pvalue)


def test_differing_evaluation_settings_are_named(tmp_path: Path) -> None:
    settings = {"max_new_tokens": 512, "samples": 1, "files_sha256": ["1"], "tasks": {"copa": 1}}
    others = {"max_new_tokens": 64, "samples": 1, "files_sha256": ["2"], "tasks": {"copa": 2}}
    write(tmp_path / "a", "gsm8k", answers([True, False]), step=600, settings=settings)
    write(tmp_path / "b", "gsm8k", answers([True, False]), step=1200, settings=others)
    found = pair_evaluations(tmp_path / "a", tmp_path / "b")
    assert found.notes == (
        "gsm8k: A and B were evaluated otherwise: step 600 and 1200, max_new_tokens 512 and 64, tasks",
    )
    assert found.notes[0] in printed(found)
    write(tmp_path / "b", "gsm8k", answers([True, False]), step=600, settings={**settings, "files_sha256": []})
    assert pair_evaluations(tmp_path / "a", tmp_path / "b").notes == ()


def test_each_filter_of_lm_eval_is_a_figure(tmp_path: Path) -> None:
    for folder, strict in (("a", True), ("b", False)):
        rows = [
            {"item": f"{n}/{name}", "prompt_sha256": str(n), "right": name == "flexible" or strict}
            for n in range(10)
            for name in ("strict", "flexible")
        ]
        write(tmp_path / folder, "lm_eval_gsm8k", rows)
    strict, flexible = pair_evaluations(tmp_path / "a", tmp_path / "b").paired
    assert [(each.name, each.items) for each in (strict, flexible)] == [
        ("lm_eval_gsm8k: strict", 10),
        ("lm_eval_gsm8k: flexible", 10),
    ]
    assert (strict.difference, flexible.difference) == (-1, 0)


def test_a_verdict_claims_a_difference_of_two_checkpoints_only(tmp_path: Path) -> None:
    write(tmp_path / "a", "mmlu", answers([True] * 40))
    write(tmp_path / "b", "mmlu", answers([False] * 40))
    shown = printed(pair_evaluations(tmp_path / "a", tmp_path / "b"))
    assert "checkpoints differ" in shown
    assert "Between runs of another seed there are differences too." in shown


def test_repeats_are_named_and_not_paired(tmp_path: Path) -> None:
    for seed in ("seed_1234", "seed_1235"):
        write(tmp_path / "a" / seed, "mmlu", answers([True]))
    write(tmp_path / "b", "mmlu", answers([True]))
    found = pair_evaluations(tmp_path / "a", tmp_path / "b")
    assert found.paired == ()
    assert str(tmp_path / "a" / "seed_1234") in found.notes[0]
    assert "evaluations of repeats are not paired" in " ".join(printed(found).split())
