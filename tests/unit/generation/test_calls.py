"""The calculator of a row: what it forces is what stands in the training text, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.chat_tokenizers import (
    ASSISTANT,
    ASSISTANT_END,
    OUTPUT,
    OUTPUT_END,
    PYTHON,
    PYTHON_END,
    byte_ids,
    of_bytes,
    of_qwen,
)

from efficientbench.data_tools.chat.examples import Examples, open_examples
from efficientbench.data_tools.chat.render import Renderer, make_renderer
from efficientbench.generation.calls import Calculator, Calls, find_calculator, spoken

QUESTIONS = 300


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return make_renderer(of_bytes(tmp_path_factory.mktemp("tokenizer") / "own"), "own")


@pytest.fixture(scope="module")
def calculator(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Calculator:
    tokenizer = of_bytes(tmp_path_factory.mktemp("tokenizer") / "same")
    found = find_calculator(renderer, tokenizer.decode)
    assert found is not None
    return found


def forced_after(calculator: Calculator, tokens: list[int]) -> list[int]:
    calls = Calls(calculator)
    for token in tokens:
        assert not calls.forced
        calls.add(token)
    return list(calls.forced)


def test_forced_tokens_match_the_training_text(renderer: Renderer, calculator: Calculator, shared_data: Path) -> None:
    examples: Examples = open_examples("gsm8k", shared_data / "gsm8k" / "train.jsonl")
    results = 0
    for example in examples.read(np.arange(QUESTIONS)):
        rendered = renderer.conversation(example.messages)
        ids, mask = rendered.ids.tolist(), rendered.mask.tolist()
        calls = Calls(calculator)
        for token, learned in list(zip(ids, mask, strict=True))[ids.index(ASSISTANT) + 1 :]:
            # The model's own words are learned; those of the calculator are not.
            assert bool(calls.forced) == (not learned)
            if calls.forced:
                assert calls.forced.popleft() == token
                results += token == OUTPUT
            calls.add(token)
        assert not calls.forced
        answer = ids[ids.index(ASSISTANT) + 1 :]
        assert spoken(answer, calculator.token_ids) == byte_ids(example.messages[-1].text)
    assert results > 3 * QUESTIONS


def test_a_call_is_answered_with_its_result(calculator: Calculator) -> None:
    call = [*byte_ids("It is "), PYTHON, *byte_ids("7*6"), PYTHON_END]
    assert forced_after(calculator, call) == [OUTPUT, *byte_ids("42"), OUTPUT_END]


@pytest.mark.parametrize(
    "tokens",
    [
        [PYTHON, *byte_ids("seven"), PYTHON_END],
        [PYTHON, PYTHON_END],
        [*byte_ids("7*6"), PYTHON_END],
        [PYTHON, *byte_ids("7*6")],
        [PYTHON, *byte_ids("7*"), ASSISTANT_END, *byte_ids("6"), PYTHON_END],
        [PYTHON, *byte_ids("7*6"), OUTPUT, PYTHON_END],
    ],
    ids=["no number", "empty", "not begun", "not ended", "message ended", "another token"],
)
def test_tokens_that_are_no_call_force_nothing(calculator: Calculator, tokens: list[int]) -> None:
    assert forced_after(calculator, tokens) == []


def test_a_restarted_call_replaces_the_first(calculator: Calculator) -> None:
    tokens = [PYTHON, *byte_ids("7*"), PYTHON, *byte_ids("1+1"), PYTHON_END]
    assert forced_after(calculator, tokens) == [OUTPUT, *byte_ids("2"), OUTPUT_END]


def test_a_style_with_textual_calls_has_no_calculator(tmp_path: Path) -> None:
    tokenizer = of_qwen(tmp_path / "qwen", ["some text of words"])
    assert find_calculator(make_renderer(tokenizer, "qwen"), tokenizer.decode) is None


def test_an_unfinished_call_is_not_part_of_the_text(calculator: Calculator) -> None:
    tokens = [
        *byte_ids("a"),
        PYTHON,
        *byte_ids("1+"),
        OUTPUT,
        *byte_ids("2"),
        OUTPUT_END,
        *byte_ids("b"),
        ASSISTANT_END,
    ]
    assert spoken(tokens, calculator.token_ids) == byte_ids("ab")
    assert spoken([*byte_ids("a"), PYTHON, *byte_ids("1+")], calculator.token_ids) == byte_ids("a")
