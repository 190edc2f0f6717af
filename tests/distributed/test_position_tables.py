"""Trained tables of positional encodings lie on several ranks: each mark that keeps their copies right is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.cells import Outcome, train, whole_gradients
from support.configs import tiny
from support.ranks import Ranks

from efficientbench.config.schema import RunConfig


def train_without_mark(mark: str | None, config: RunConfig, prefix: Path) -> tuple[Outcome, torch.Tensor | None]:
    """One step with a table that lacks a mark, and the table after it."""
    from efficientbench.model import gpt

    build, tables = gpt.build_position, []

    def build_unmarked(*arguments: object) -> object:
        position = build(*arguments)
        if position.table is not None:
            tables.append(position.table)
            if mark is not None:
                delattr(position.table, mark)
        return position

    with mock.patch.object(gpt, "build_position", build_unmarked):
        outcome = train(config, prefix, steps=1)
    return outcome, tables[0].detach().clone() if tables else None


@pytest.mark.parametrize(
    ("name", "layout", "size", "mark"),
    [
        ("relative_1.5B", ["parallel.pp=2"], 2, "pipeline_parallel"),
        ("relative_1.5B", ["parallel.pp=2"], 2, "shared"),
        pytest.param(
            "relative_1.5B", ["parallel.pp=2", "parallel.dp=2"], 4, "shared_embedding", marks=pytest.mark.proof
        ),
        ("learnable_absolute_1.5B", ["parallel.tp=2", "parallel.sp=true"], 2, "sequence_parallel"),
    ],
)
def test_gradients_of_position_tables_are_wrong_without_each_mark(
    name: str, layout: list[str], size: int, mark: str, ranks: Callable[[int], Ranks], corpus: Path
) -> None:
    # Weights so large that scores, and with them the table, weigh in the gradient norm.
    overrides = [f"data.cache={corpus.parent}", "model.init_std=0.2"]
    config, split = tiny(name, *overrides), tiny(name, *overrides, *layout)
    [(expected, _)] = ranks(1).call(train_without_mark, None, config, corpus)
    marked = ranks(size).call(train_without_mark, None, split, corpus)
    unmarked = ranks(size).call(train_without_mark, mark, split, corpus)
    assert agrees(marked, expected)
    assert not agrees(unmarked, expected)


def agrees(answers: list[tuple[Outcome, torch.Tensor | None]], expected: Outcome) -> bool:
    """Whether gradient norm, the table's gradient and its copies are those of a single rank."""
    outcomes = [outcome for outcome, _ in answers]
    if any(outcome.norms != pytest.approx(expected.norms, rel=1e-5) for outcome in outcomes):
        return False
    for outcome in outcomes:
        if "position_table" in outcome.gradients:
            gradients = whole_gradients([each for each in outcomes if each.pp_rank == outcome.pp_rank], 131)
            table = whole_gradients([expected], 131)["position_table"]
            if not torch.allclose(gradients["position_table"], table, rtol=1e-4, atol=1e-5 * float(table.abs().max())):
                return False
    copies = [table for _, table in answers if table is not None]
    return all(torch.equal(copy, copies[0]) for copy in copies)
