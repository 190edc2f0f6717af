"""The chat page in a browser: answers with their calls, what is refused, a key, and a connection that is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.browser import CHROMIUM, seen
from support.served import call, learned_chat

from efficientbench.chat.answers import Chat

pytestmark = [
    pytest.mark.proof,
    pytest.mark.usefixtures("single_rank"),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

KEY = "a key of 16 or more characters"
FIRST, SECOND = ["said", "It is 6*7 = 4242."], ["said", "42/2 = 2121."]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, single_rank: None) -> Chat:
    """A model that knows two answers, the second one after the first with its call."""
    first = [{"type": "text", "text": "It is "}, *call("6*7", "42"), {"type": "text", "text": "42."}]
    second = [*call("42/2", "21"), {"type": "text", "text": "21."}]
    turns: list[Any] = [
        {"role": "user", "content": "What is 6*7?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And half of it?"},
        {"role": "assistant", "content": second},
    ]
    return learned_chat(tmp_path_factory.mktemp("chat"), turns)


def test_answers_are_shown_and_sent_back_with_their_calls(chat: Chat, tmp_path: Path) -> None:
    script = """
      await say("What is 6*7?");
      await say("And half of it?");
      return { said: said(), calls: [...document.querySelectorAll(".call")].map((each) => each.textContent) };
    """
    found = seen(chat, script, tmp_path)
    assert found["said"] == [["said user", "What is 6*7?"], FIRST, ["said user", "And half of it?"], SECOND]
    assert found["calls"] == ["6*7 = 42", "42/2 = 21"]


def test_a_refused_message_can_be_sent_again_and_markup_is_text(chat: Chat, tmp_path: Path) -> None:
    script = """
      at("language").click();
      await say("x".repeat(8001));
      const refused = { kept: at("text").value.length, note: said().at(-1) };
      at("text").value = "some words ".repeat(100);
      at("text").dispatchEvent(new Event("input"));
      const high = at("text").offsetHeight;
      await say("<img src=x>");
      const { scrollWidth, lang } = document.documentElement;
      return { ...refused, lang, send: at("send").textContent, high, most: innerHeight * 0.4 + 1,
               wide: scrollWidth > innerWidth, asked: said()[2], images: document.images.length };
    """
    found = seen(chat, script, tmp_path)
    assert (found["lang"], found["send"]) == ("zh", "发送")
    assert found["kept"] == 8001
    assert found["note"] == [
        *("said note wrong", "messages[0].content: 8,001 characters, at most 8,000 are taken"),
    ]
    # The field grows with its text, to a part of the screen; nothing is wider than that.
    assert 100 < found["high"] <= found["most"]
    assert found["wide"] is False
    assert (found["asked"], found["images"]) == (["said user", "<img src=x>"], 0)


def test_a_key_that_no_header_can_hold_is_asked_for_again(chat: Chat, tmp_path: Path) -> None:
    script = f"""
      const keys = ["密钥密钥", "another key of 16 characters", "{KEY}"];
      prompt = () => keys.shift();
      await say("What is 6*7?");
      return {{ said: said(), left: keys.length }};
    """
    assert seen(chat, script, tmp_path, KEY) == {"said": [["said user", "What is 6*7?"], FIRST], "left": 0}


def test_an_interrupted_answer_is_marked(chat: Chat, tmp_path: Path) -> None:
    script = """
      fetch = async () => new Response('data: {"choices":[{"delta":{"content":"half"}}]}\\n\\n');
      await say("What is 6*7?");
      return said().slice(1);
    """
    assert seen(chat, script, tmp_path) == [["said", "half"], ["said note wrong", "the server cannot be reached"]]
