"""A conversation in the terminal, near the end of a model's positions."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.chat.answers import Said
from efficientbench.chat.terminal import Conversation
from efficientbench.data_tools.chat.conversations import TEXT
from efficientbench.generation.sampling import Sampling


def test_an_answer_is_limited_to_the_remaining_positions() -> None:
    rooms: list[int] = []

    def answer(model: object, prompt: list[int], sampling: Sampling, room: int) -> Iterator[Said]:
        rooms.append(room)
        yield Said(TEXT, "Yes.", "stop")

    model = SimpleNamespace(position=SimpleNamespace(longest=512))
    run = SimpleNamespace(config=SimpleNamespace(model=model), model=None)
    chat: Any = SimpleNamespace(run=run, prompt=lambda messages: [0] * 200 * len(messages), answer=answer)
    conversation = Conversation(chat, Sampling(), 256)
    conversation.say("Is it so?")
    with pytest.raises(ConfigError, match="has 600 tokens, and the model 512 positions: `clear` begins a new one"):
        conversation.say("And so?")
    chat.prompt = lambda messages: [0] * 500
    conversation.say("So?")
    assert rooms == [256, 12]
