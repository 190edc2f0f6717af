"""The parts of an answer, and how the terminal shows them."""

from __future__ import annotations

import pytest

from efficientbench.chat.answers import Said, parts_of
from efficientbench.chat.terminal import shown
from efficientbench.data_tools.chat.conversations import CALL, RESULT, TEXT, Part, read_messages

WITH_CALL = [
    *(Said(TEXT, "It "), Said(TEXT, "is "), Said(TEXT, "")),
    *(Said(CALL, "6"), Said(CALL, "*7"), Said(CALL, "")),
    *(Said(TEXT, ""), Said(RESULT, "4"), Said(RESULT, "2"), Said(RESULT, "")),
    *(Said(TEXT, "42."), Said(TEXT, "", "stop")),
]
TWO_CALLS = [Said(TEXT, ""), Said(CALL, "a"), Said(TEXT, ""), Said(CALL, "6*7"), Said(TEXT, ""), Said(RESULT, "42")]


def test_tokens_become_valid_parts_of_a_conversation() -> None:
    parts = parts_of(WITH_CALL)
    assert parts == (Part(TEXT, "It is "), Part(CALL, "6*7"), Part(RESULT, "42"), Part(TEXT, "42."))
    assert parts_of(TWO_CALLS) == (Part(CALL, "6*7"), Part(RESULT, "42"))
    assert parts_of([Said(CALL, "6*"), Said(CALL, "7", "length")]) == ()
    assert parts_of([Said(RESULT, "42")]) == ()
    for said in (WITH_CALL, TWO_CALLS):
        content = [{"type": part.kind, "text": part.text} for part in parts_of(said)]
        read_messages([{"role": "user", "content": "a"}, {"role": "assistant", "content": content}])


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (WITH_CALL, "It is [6*7 = 42]42.\n"),
        ([Said(CALL, "6*"), Said(CALL, "7", "length")], "[6*7]\n"),
        ([Said(TEXT, "\x1b[2J!", "stop")], "\ufffd[2J!\n"),
    ],
)
def test_calls_are_shown_and_text_cannot_control_the_terminal(
    said: list[Said], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(said) == said
    assert capsys.readouterr().out == printed
