"""Requests as OpenAI's clients send them: what is taken, and the field that each mistake names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from efficientbench.chat.request import MAX_ALL_CHARACTERS, MAX_CHARACTERS, RequestError, read_request
from efficientbench.data_tools.chat.conversations import CALL, RESULT, TEXT, Part

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "Hello"}


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [USER], **fields}).encode()


def test_fields_that_are_null_or_missing_have_their_defaults() -> None:
    request, messages = read_request(body(temperature=None, max_tokens=None, stream=None, seed=None, n=1, user="a"))
    assert (request.temperature, request.top_k, request.answer_tokens) == (0.8, 50, None)
    assert (request.stream, request.seed) == (False, None)
    assert [message.text for message in messages] == ["Hi"]
    assert read_request(body(max_tokens=3, max_completion_tokens=5))[0].answer_tokens == 5


def test_fields_at_values_without_effect_are_taken_and_a_developer_is_the_system() -> None:
    noop = {"tools": [], "logit_bias": {}, "response_format": {"type": "text"}, "store": False, "logprobs": False}
    _, messages = read_request(body(messages=[{"role": "developer", "content": "Be brief."}, USER], **noop))
    assert [(each.role, each.text) for each in messages] == [("system", "Be brief."), ("user", "Hi")]


def test_messages_of_one_role_are_joined_and_counted_apart() -> None:
    long = {**USER, "content": "a" * MAX_CHARACTERS}
    _, messages = read_request(body(messages=[SYSTEM, SYSTEM, USER, ASSISTANT, long, USER]))
    assert [(each.role, each.text) for each in messages] == [
        ("system", "Be brief.\n\nBe brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", f"{long['content']}\n\nHi"),
    ]
    _, messages = read_request(body(messages=[USER, ASSISTANT]))
    assert (messages[-1].role, messages[-1].text) == ("assistant", "Hello")


def test_an_answer_sent_back_keeps_its_calls() -> None:
    parts = [
        {"type": "text", "text": "It is "},
        {"type": "python", "text": "6*7"},
        {"type": "python_output", "text": "42"},
    ]
    answer = {"role": "assistant", "content": "It is ", "parts": parts, "refusal": None, "tool_calls": None}
    _, messages = read_request(body(messages=[USER, answer, USER]))
    assert messages[1].parts == (Part(TEXT, "It is "), Part(CALL, "6*7"), Part(RESULT, "42"))
    _, messages = read_request(body(messages=[USER, {**answer, "parts": None}, USER]))
    assert messages[1].parts == (Part(TEXT, "It is "),)


@pytest.mark.parametrize(
    ("content", "param", "message"),
    [
        (b"{", None, "Invalid JSON"),
        (b'{"messages": "\xff"}', None, "Invalid JSON"),
        (b"[]", None, "Input should be"),
        (b"{}", "messages", "Field required"),
        (body(messages=[]), "messages", "at least 1 item"),
        (body(messages=[USER, ASSISTANT] * 251), "messages", "at most 500 items"),
        (body(messages=["Hi"]), "messages[0]", "an object with role and content is needed"),
        (body(messages=[{"role": "usr", "content": "a"}]), "messages[0].role", "did you mean user?"),
        (body(messages=[{"role": "user"}]), "messages[0].content", "a text or a list of parts is needed"),
        (body(messages=[{**USER, "content": " "}]), "messages[0].content", "the message is empty"),
        (
            body(messages=[{**USER, "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]),
            "messages[0].content[0].type",
            "'image_url' is none of text",
        ),
        (body(messages=[USER, USER, ASSISTANT, ASSISTANT]), "messages[3].role", "must be 'user'"),
        (body(messages=[USER, SYSTEM]), "messages[1].role", "must be 'assistant'"),
        (body(messages=[SYSTEM, SYSTEM]), "messages[1].role", "ends with the user"),
        (body(messages=[ASSISTANT, USER]), "messages[0].role", "must be 'user'"),
        (body(messages=[USER, {**USER, "content": "a" * 8_001}]), "messages[1].content", "8,001 characters"),
        (
            body(messages=[{**USER, "content": "a" * MAX_CHARACTERS}, ASSISTANT] * 4 + [USER]),
            "messages",
            f"{MAX_ALL_CHARACTERS + 22:,} characters together",
        ),
        (body(temperature=2.1), "temperature", "less than or equal to 2"),
        (body(temperature="warm"), "temperature", "valid number"),
        (body(temperature=float("nan")), "temperature", "finite number"),
        (body(top_p="nan"), "top_p", "finite number"),
        (body(max_tokens=0), "max_tokens", "greater than or equal to 1"),
        (body(max_tokens=4097), "max_tokens", "less than or equal to 4096"),
        (body(top_p=1.5), "top_p", "less than or equal to 1"),
        (body(top_k=-1), "top_k", "greater than or equal to 0"),
        (body(seed=-1), "seed", "greater than or equal to 0"),
        (body(stop=["a", "b", "c", "d", "e"]), "stop", "stop: at most 4 strings are taken, of 1 to 1,000 characters"),
        (body(stop=["", "b"]), "stop", "stop: at most 4 strings are taken, of 1 to 1,000 characters"),
        (body(stop=3), "stop", "stop: at most 4 strings"),
        (body(n=9), "n", "less than or equal to 8"),
        (body(presence_penalty=0.5), "presence_penalty", "less than or equal to 0"),
        (body(stream="often"), "stream", "valid boolean"),
        (body(stream_options={"include_usage": "a"}), "stream_options.include_usage", "valid boolean"),
        (body(temprature=1), "temprature", "unknown field; did you mean temperature?"),
        (body(tools=[{}]), "tools", "at most 0 items"),
        (body(response_format={"type": "json_object"}), "response_format.type", "should be 'text'"),
        (body(logit_bias={"5": 1}), "logit_bias", "at most 0 items"),
    ],
)
def test_a_mistake_is_answered_with_400_and_its_field(content: bytes, param: str | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(content)
    error = caught.value.content()["error"]
    assert (caught.value.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert message in error["message"]


def test_a_request_at_every_limit_is_accepted() -> None:
    full = [{**USER, "content": "a" * 64}, {**ASSISTANT, "content": "b" * 64}] * 249 + [{**USER, "content": "ü" * 128}]
    _, messages = read_request(body(messages=full, temperature=0, top_p=0, top_k=0, max_tokens=4096, seed=2**63 - 1))
    assert sum(len(message.text) for message in messages) == MAX_ALL_CHARACTERS


def test_an_answer_sent_back_keeps_its_text() -> None:
    for answer in ("", " ", "a" * (MAX_CHARACTERS + 1)):
        messages = [USER, {"role": "assistant", "content": answer}, USER]
        _, read = read_request(json.dumps({"messages": messages}).encode())
        assert [part.text for part in read[1].parts] == [answer]
