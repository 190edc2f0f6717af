"""A served chat model by OpenAI's own client: what it answers, several clients at once, and those who leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from oracles.oracle import build
from support.chat_tokenizers import (
    ASSISTANT,
    ASSISTANT_END,
    BOS,
    OUTPUT,
    OUTPUT_END,
    PYTHON,
    PYTHON_END,
    USER,
    USER_END,
    byte_ids,
    of_bytes,
)
from support.command_line import until
from support.configs import tiny
from support.served import Served, call, chat_of, learned_chat, learned_tokens, served

from efficientbench.chat.answers import Chat
from efficientbench.chat.pool import pool_of
from efficientbench.chat.terminal import Conversation
from efficientbench.chat.web import PAGE_POLICY
from efficientbench.data_tools.chat.conversations import TEXT, read_prompt
from efficientbench.devices.cpu import CPU
from efficientbench.generation.open_run import Opened
from efficientbench.generation.sampling import Sampling

pytestmark = pytest.mark.usefixtures("single_rank")

KEY = "a key of 16 or more characters"
ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}]


def random_chat(folder: Path, name: str = "gqa_1.5B", *overrides: str) -> Chat:
    """A model with random weights: its answers are noise, which a seed decides, and never end by themselves."""
    config = tiny(name, "model.vocab_size=266", "model.init_std=0.2", "model.tied=false", *overrides)
    model = build(config).eval()
    # Their logits are 0, and 50 others are larger.
    model.output_layer.weight.data[[0, ASSISTANT_END]] = 0
    return chat_of(Opened(model, config, of_bytes(folder / "tokenizer"), 1, ()))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, single_rank: None) -> Chat:
    return random_chat(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def server(chat: Chat) -> Iterator[Served]:
    with served(chat, models=2) as found:
        yield found


def expected(chat: Chat, messages: list[Any], seed: int, tokens: int, temperature: float = 0.8) -> str:
    """The text of an answer that no server gave."""
    sampling = Sampling(temperature, 50, 1.0, seed)
    said = chat.answer(chat.run.model, chat.prompt(read_prompt(messages)), sampling, tokens)
    return "".join(each.text for each in said if each.kind == TEXT)


def test_complete_and_streamed_answers_match_the_model(server: Served, chat: Chat) -> None:
    client = server.client
    assert [model.id for model in client.models.list()] == ["tiny"]
    whole = client.chat.completions.create(model="tiny", messages=ASKED, seed=3, max_tokens=40)
    [choice] = whole.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected(chat, ASKED, 3, 40)
    assert len(choice.message.content) > 0
    prompt = len(chat.prompt(read_prompt(ASKED)))
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.object, whole.model) == (prompt, "chat.completion", "tiny")
    assert whole.usage.total_tokens == prompt + whole.usage.completion_tokens
    assert (choice.finish_reason, whole.usage.completion_tokens) == ("length", 40)
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=ASKED, seed=3, max_completion_tokens=40, stream=True, stream_options=options
        )
    )
    assert {chunk.id for chunk in chunks} == {chunks[0].id} != {whole.id}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == choice.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, choice.finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    # Without a seed each answer is another one.
    texts = {
        client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=20).choices[0].message.content
        for _ in range(2)
    }
    assert len(texts) == 2


def test_an_answer_ends_before_a_stop_string_over_several_tokens(server: Served, chat: Chat) -> None:
    text = expected(chat, ASKED, 3, 40)
    stop = text[10:14]
    # The second one begins and never comes, so that it is held back and sent.
    ask: dict[str, Any] = {"model": "tiny", "messages": ASKED, "seed": 3, "max_tokens": 40}
    ask["stop"] = [stop, text[2:4] + "\x00never"]
    [choice] = server.client.chat.completions.create(**ask).choices
    assert (choice.message.content, choice.finish_reason) == (text[: text.index(stop)], "stop")
    chunks = [chunk.choices[0] for chunk in server.client.chat.completions.create(**ask, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content
    assert chunks[-1].finish_reason == "stop"
    [choice] = server.client.chat.completions.create(**{**ask, "stop": "\x00never"}).choices
    assert (choice.message.content, choice.finish_reason) == (text, "length")


def test_several_answers_to_one_request(server: Served, chat: Chat) -> None:
    ask: dict[str, Any] = {"model": "tiny", "messages": ASKED, "seed": 3, "max_tokens": 40, "n": 3}
    before = server.stats()
    # The first one ends before the others.
    ask["stop"] = expected(chat, ASKED, 3, 40)[10:14]
    whole = server.client.chat.completions.create(**ask)
    texts = [choice.message.content or "" for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in whole.choices] == ["stop", "length", "length"]
    assert len(set(texts)) == 3
    [alone] = server.client.chat.completions.create(**{**ask, "n": 1}).choices
    assert texts[0] == alone.message.content
    chunks = [each.choices[0] for each in server.client.chat.completions.create(**ask, stream=True)]
    for index, text in enumerate(texts):
        own = [chunk for chunk in chunks if chunk.index == index]
        assert "".join(chunk.delta.content or "" for chunk in own) == text
        assert own[-1].finish_reason == whole.choices[index].finish_reason
    assert server.stats()["answers"] - before["answers"] == 3


def test_a_last_message_of_the_assistant_is_continued(server: Served, chat: Chat) -> None:
    begun: list[Any] = [*ASKED, {"role": "assistant", "content": "It is"}]
    prompt = chat.prompt(read_prompt(begun))
    assert prompt == [*chat.prompt(read_prompt(ASKED)), *byte_ids("It is")]
    assert chat.prompt(read_prompt([*ASKED, {"role": "assistant", "content": ""}])) == chat.prompt(read_prompt(ASKED))
    made = server.client.chat.completions.create(model="tiny", messages=begun, seed=3, max_tokens=20)
    assert made.choices[0].message.content == expected(chat, begun, 3, 20)
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(prompt)


def test_concurrent_clients_get_their_own_answers(server: Served, chat: Chat) -> None:
    before = server.stats()

    def ask(number: int) -> str:
        messages: list[Any] = [{"role": "user", "content": f"{number}?"}]
        made = server.client.chat.completions.create(
            model="tiny", messages=messages, seed=number, temperature=1, max_tokens=20
        )
        return made.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, range(8)))
    after = server.stats()
    for number, answer in enumerate(answers):
        assert answer == expected(chat, [{"role": "user", "content": f"{number}?"}], number, 20, 1.0)
    assert (after["models"], after["busy"], after["waiting"]) == (2, 0, 0)
    assert after["answers"] - before["answers"] == 8


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer(chat: Chat, stream: bool) -> None:
    with served(chat) as server:
        ask: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 4096}
        if stream:
            with server.client.chat.completions.create(**ask, stream=True) as answer:
                next(iter(answer))
        else:
            with pytest.raises(openai.APITimeoutError):
                server.client.with_options(timeout=0.5).chat.completions.create(**ask)
        until(lambda: server.stats()["left"] == 1, "an answer that nobody reads and that ends", limit_s=60)
        stats = server.stats()
        assert (stats["busy"], stats["answers"], stats["failed"]) == (0, 0, 0)
        assert stats["completion_tokens"] < 4096
        # The model continues from another cache.
        text = server.client.chat.completions.create(**{**ask, "max_tokens": 9}, seed=1).choices[0].message.content
        assert text == expected(chat, ASKED, 1, 9)


def test_a_client_that_leaves_before_its_turn_leaves_the_queue(chat: Chat) -> None:
    with served(chat) as server:
        ask: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 4096}
        with server.client.chat.completions.create(**ask, stream=True) as first:
            next(iter(first))
            with pytest.raises(openai.APITimeoutError):
                server.client.with_options(timeout=0.5).chat.completions.create(**ask)
            until(lambda: server.stats()["waiting"] == 0, "a client that has left", limit_s=60)
            stats = server.stats()
            assert (stats["busy"], stats["left"], stats["answers"]) == (1, 1, 0)


def test_models_on_one_device_share_their_weights(chat: Chat) -> None:
    with pool_of(chat.run, 2) as pool:
        first, second = (worker.model for worker in pool.workers)
        assert first is chat.run.model
        assert first is not second
        pairs = list(zip(first.parameters(), second.parameters(), strict=True))
        assert pairs
        assert all(mine.data_ptr() == theirs.data_ptr() for mine, theirs in pairs)


def test_the_cpu_stands_in_for_a_gpu_in_every_thread_that_is_prepared() -> None:
    def made() -> torch.device:
        CPU().prepare(0)
        return torch.zeros(1, device="cuda").device

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(made).result() == torch.device("cpu")


def test_mistakes_are_answered_with_their_field(server: Served) -> None:
    client = server.client
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": ""}])
    assert wrong.value.param == "messages[0].content"
    assert "the message is empty" in wrong.value.message
    with pytest.raises(openai.NotFoundError, match="there is no gpt; this is tiny"):
        client.chat.completions.create(model="gpt", messages=ASKED)
    body = json.dumps({"messages": ASKED, "max_tokens": 2}).encode()
    assert server.post(body)[0] == 200
    assert server.post(body[:-1])[0] == 400
    assert server.post(body, **{"Content-Type": "text/plain"})[0] == 415
    assert server.post(body, Host="example.org")[0] == 403
    assert server.post(b" " * (1 << 20) + body)[0] == 413
    status, _, told = server.get("/nothing")
    assert (status, json.loads(told)["error"]["message"]) == (404, "GET /nothing: Not Found")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:80", "[::1]:8000", "[::1]"])
def test_requests_to_the_servers_own_host_names_are_answered(server: Served, host: str) -> None:
    assert server.get("/health", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "localhost.example.org",
        "127.0.0.1.example.org:8000",
        "notlocalhost",
        "example.org@localhost",
        "localhost/.example.org",
        "example_org/",
        "localhost:80:80",
        "localhost:example.org",
        "example.org:8000 localhost",
        "::1",
        "",
    ],
)
def test_requests_to_similar_host_names_are_refused(server: Served, host: str) -> None:
    assert server.get("/health", Host=host)[0] == 403


def test_a_prompt_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with served(random_chat(tmp_path, "learnable_absolute_1.5B", "model.position.max_seq_len=64")) as server:
        create = server.client.chat.completions.create
        long: list[Any] = [{"role": "user", "content": "a" * 64}]
        with pytest.raises(openai.BadRequestError, match="68 tokens, and the model takes at most 63") as refused:
            create(model="tiny", messages=long)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
        short: list[Any] = [{"role": "user", "content": "a" * 50}]
        # bos, user_start, 50 bytes, user_end, assistant_start.
        with pytest.raises(openai.BadRequestError, match="10 would fit") as refused:
            create(model="tiny", messages=short, max_tokens=11)
        assert refused.value.param == "max_tokens"
        with pytest.raises(openai.BadRequestError, match="max_completion_tokens: 11 tokens behind") as refused:
            create(model="tiny", messages=short, max_completion_tokens=11)
        assert refused.value.param == "max_completion_tokens"
        made = create(model="tiny", messages=short)
        assert made.usage is not None
        assert made.usage.completion_tokens == 10


def test_a_key_is_required_for_everything_but_the_page(chat: Chat) -> None:
    with served(chat, key=KEY) as server:
        stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="another key that is long enough", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(model="tiny", messages=ASKED)
        assert [server.get(path)[0] for path in ("/", "/health", "/stats", "/v1/models")] == [200, 200, 401, 401]
        made = server.client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=2)
        assert made.choices[0].message.role == "assistant"
        # Whoever knows the key may use any name.
        assert server.get("/stats", Host="example.org", Authorization=f"Bearer {KEY}")[0] == 200


def test_the_page_loads_nothing_from_elsewhere(server: Served) -> None:
    status, headers, body = server.get("/", Origin="http://example.org")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-security-policy"] == PAGE_POLICY
    assert not any(name.lower().startswith("access-control") for name in headers)
    assert b"://" not in body
    health = json.loads(server.get("/health")[2])
    assert (health["status"], health["model"], health["models"]) == ("ok", "tiny", 2)


@pytest.mark.proof
def test_calls_of_the_calculator_are_shown_and_may_be_sent_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [{"type": "text", "text": "It is "}, *call("6*7", "42"), {"type": "text", "text": "42."}]
    second = [*call("42/2", "21"), {"type": "text", "text": "21."}]
    asked: list[Any] = [{"role": "user", "content": "What is 6*7?"}]
    then: list[Any] = [{"role": "user", "content": "And half of it?"}]
    turns = [*asked, {"role": "assistant", "content": first}, *then, {"role": "assistant", "content": second}]
    chat = learned_chat(tmp_path, turns)
    with served(chat) as server:
        create = server.client.chat.completions.create
        answer = create(model="tiny", messages=asked, temperature=0).choices[0]
        assert (answer.message.content, answer.finish_reason) == ("It is 42.", "stop")
        assert (answer.message.model_extra or {})["parts"] == first
        # The client's own object goes back, with its parts: without them the second question is another one.
        messages: list[Any] = [*asked, answer.message, *then]
        assert create(model="tiny", messages=messages, temperature=0).choices[0].message.content == "21."
        begun: list[Any] = [*asked, {"role": "assistant", "content": "It is "}]
        assert create(model="tiny", messages=begun, temperature=0).choices[0].message.content == "42."
        streamed: dict[str, str] = {}
        for chunk in create(model="tiny", messages=asked, temperature=0, stream=True):
            delta = chunk.choices[0].delta
            part = (delta.model_extra or {}).get("part", {"type": "text", "text": delta.content or ""})
            streamed[part["type"]] = streamed.get(part["type"], "") + part["text"]
        assert streamed == {"text": "It is 42.", "python": "6*7", "python_output": "42"}
    conversation = Conversation(chat, Sampling(), 64)
    conversation.say("What is 6*7?")
    conversation.say("And half of it?")
    assert capsys.readouterr().out == "It is [6*7 = 42]42.\n[42/2 = 21]21.\n"


@pytest.mark.proof
def test_a_call_without_a_result_is_not_part_of_the_next_answer(tmp_path: Path) -> None:
    question = [BOS, USER, *byte_ids("a"), USER_END, ASSISTANT]
    # The first is no arithmetic: the model goes on by itself.
    calls = [PYTHON, *byte_ids("a"), PYTHON_END, PYTHON, *byte_ids("6*7"), PYTHON_END]
    answer = [*calls, OUTPUT, *byte_ids("42"), OUTPUT_END, ASSISTANT_END]
    chat = learned_tokens(tmp_path, [*question, *answer], [*[0] * len(question), *[1] * len(answer)])
    asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": 0}
    with served(chat) as server:
        whole = server.client.chat.completions.create(**asked).choices[0].message
        assert (whole.model_extra or {})["parts"] == call("6*7", "42")
        parts: list[list[str]] = []
        for chunk in server.client.chat.completions.create(**asked, stream=True):
            delta = chunk.choices[0].delta
            part = (delta.model_extra or {}).get("part", {"type": TEXT, "text": delta.content or ""})
            if parts and parts[-1][0] == part["type"]:
                parts[-1][1] += part["text"]
            else:
                parts.append([part["type"], part["text"]])
    assert [each for each in parts if each[1]] == [["python", "a"], ["python", "6*7"], ["python_output", "42"]]


@pytest.mark.proof
def test_lm_eval_asks_the_server_as_it_asks_openai(server: Served, chat: Chat) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalChatCompletion

    model = LocalChatCompletion(
        base_url=f"{server.url}/v1/chat/completions", model="tiny", tokenizer_backend=None, num_concurrent=1
    )
    text = expected(chat, ASKED, 1, 40, temperature=0)
    until_text = text[10:14]
    asked = (model.apply_chat_template(ASKED), {"until": [until_text], "max_gen_toks": 40, "do_sample": False})
    [answer] = model.generate_until([Instance("generate_until", {}, asked, 0)], disable_tqdm=True)
    assert answer == text[: text.index(until_text)]
