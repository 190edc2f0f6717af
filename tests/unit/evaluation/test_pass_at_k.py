"""pass@k against all ways to draw k of n samples, and ChatCORE against sums by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from efficientbench.evaluation.task import Summary


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_draws_with_a_hit(samples: int) -> None:
    from efficientbench.evaluation.chat.generative import pass_at_k

    for right in range(samples + 1):
        hits = [number < right for number in range(samples)]
        for k in range(1, samples + 1):
            draws = [any(draw) for draw in combinations(hits, k)]
            assert pass_at_k(samples, right, k) == pytest.approx(sum(draws) / len(draws))


ACCURACIES = {"arc_easy": 0.4, "arc_challenge": 0.25, "mmlu": 0.1, "gsm8k": 0.05, "humaneval": 0.0}


def summaries(names: list[str]) -> dict[str, Summary]:
    return {name: Summary({"accuracy": ACCURACIES[name]}, parts={"standard_error": 0.01}) for name in names}


def test_chat_core_is_centred_on_guessing() -> None:
    from efficientbench.evaluation.chat.chat_tasks import chat_core

    found = chat_core(summaries([*ACCURACIES]) | {"core": Summary({"core": 0.2})})
    assert found is not None
    assert found.figures["chat_core"] == pytest.approx((0.2 + 0.0 - 0.2 + 0.05 + 0.0) / 5)
    assert found.parts["centred"]["mmlu"] == pytest.approx(-0.2)
    # Three tasks of four choices, and two in which nobody guesses.
    assert found.parts["standard_error"] == pytest.approx((3 * (0.01 / 0.75) ** 2 + 2 * 0.01**2) ** 0.5 / 5)


def test_chat_core_is_absent_where_a_task_is_missing() -> None:
    from efficientbench.evaluation.chat.chat_tasks import chat_core

    assert chat_core(summaries(["arc_easy", "mmlu", "gsm8k", "humaneval"])) is None
