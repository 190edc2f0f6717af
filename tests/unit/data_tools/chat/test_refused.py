"""Mixtures and rows that cannot be used: one line with file, row and key, and nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.data_tools_command import run

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.build import build_conversations
from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer

USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
CALL, RESULT = {"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


BAD_MESSAGES: list[tuple[Any, str]] = [
    (None, r"messages: a list of messages is needed, it is: None"),
    ([], r"messages: a list of messages is needed"),
    ("Hi", r"messages: a list of messages is needed, it is: 'Hi'"),
    ([USER, 5], r"messages\[1\]: an object with role and content is needed, it is: 5"),
    ([USER, USER], r"messages\[1\]\.role: it is 'user', and must be 'assistant': after a system message"),
    ([ASSISTANT, USER], r"messages\[0\]\.role: it is 'assistant', and must be 'user'"),
    ([USER, ASSISTANT, ASSISTANT], r"messages\[2\]\.role: it is 'assistant', and must be 'user'"),
    ([USER, {"role": "system", "content": "S"}, ASSISTANT], r"messages\[1\]\.role: it is 'system', and must be 'assi"),
    ([USER, ASSISTANT, USER], r"messages\[2\]\.role: a conversation ends with the assistant, this one with the user"),
    ([{"role": "system", "content": "S"}], r"messages\[0\]\.role: a conversation ends with the assistant"),
    ([USER, {"role": "asistant", "content": "Yo"}], r"messages\[1\]\.role: 'asistant' is none of .*mean assistant\?"),
    ([USER, {"content": "Yo"}], r"messages\[1\]\.role: None is none of system, user, assistant"),
    ([user(""), ASSISTANT], r"messages\[0\]\.content: the message is empty"),
    ([USER, assistant(" \n")], r"messages\[1\]\.content: the message is empty"),
    ([USER, assistant([])], r"messages\[1\]\.content: the message is empty"),
    ([USER, {"role": "assistant"}], r"messages\[1\]\.content: a text or a list of parts is needed, it is: None"),
    (
        [USER, assistant([{"type": "image", "text": "x"}])],
        r"messages\[1\]\.content\[0\]\.type: 'image' is none of text,",
    ),
    ([USER, assistant([{"type": "text", "text": ""}])], r"messages\[1\]\.content\[0\]\.text: a text that is not empty"),
    ([USER, assistant(["Yo"])], r"messages\[1\]\.content\[0\]: an object with type and text is needed"),
    ([USER, assistant([CALL])], r"messages\[1\]\.content\[0\]: a python part needs its python_output right after it"),
    ([USER, assistant([RESULT])], r"messages\[1\]\.content\[0\]: a python_output part needs its python part"),
    ([user([CALL, RESULT]), ASSISTANT], r"messages\[0\]\.content: only the assistant calls tools, not the user"),
    ([USER, assistant("Yo", tool_calls=[1])], r"messages\[1\]\.tool_calls: unknown key; a message has role, content"),
    ([USER, assistant("Yo", loss_weight=0.5)], r"messages\[1\]\.loss_weight: 0 \(not learned\) or 1 is needed"),
    ([{**USER, "loss_weight": 1}, ASSISTANT], r"messages\[0\]\.loss_weight: only the assistant's messages are learned"),
    ([USER, assistant("Yo", loss_weight=0)], r"messages: every message of the assistant has loss_weight 0"),
    ([{"from": "human", "value": "Hi"}, {"from": "bot", "value": "Yo"}], r"messages\[1\]\.from: 'bot' is none of sys"),
    ([USER, assistant("\ud800")], r"messages\[1\]\.content: half of a surrogate pair \('\\ud800'\) stands alone"),
]


@pytest.mark.parametrize(("messages", "problem"), BAD_MESSAGES)
def test_a_bad_row_is_named_and_leaves_no_file(
    rows: Path, tmp_path: Path, chat_bpe: Path, messages: Any, problem: str
) -> None:
    with rows.open("a") as stream:
        stream.write("\n" + json.dumps({"messages": messages}) + "\n")
    before = {path.name for path in tmp_path.iterdir()}
    file = tmp_path / "mixture.yaml"
    file.write_text("tasks: [{task: messages, path: rows.jsonl}]")
    with pytest.raises(DataError, match=rf"rows\.jsonl:42: {problem}"):
        build_conversations(file, tmp_path / "chat", chat_bpe)
    assert {path.name for path in tmp_path.iterdir()} == {*before, "mixture.yaml", "chat.lock"}
    # Once it is mended, the same command works: no plan of the bad file is left.
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:40]))
    assert build_conversations(file, tmp_path / "chat", chat_bpe).documents == 40


BAD_MIXTURES = [
    ("tasks: [", r"mixture\.yaml:1: not YAML"),
    ("9" * 5000, r"mixture\.yaml: not YAML: Exceeds the limit"),
    ("5", r"mixture\.yaml: a mixture has the keys seed and tasks"),
    ("seed: 1", r"mixture\.yaml: tasks: Field required"),
    ("tasks: []", r"mixture\.yaml: tasks: List should have at least 1 item"),
    ("tasks: [{path: rows.jsonl}]", r"mixture\.yaml: tasks\[0\]\.task: Field required"),
    ("tasks: [{task: messages, epoch: 2}]", r"mixture\.yaml: tasks\[0\]\.epoch: unknown key; did you mean epochs\?"),
    ("tasks: [{task: messages}]\nsed: 1", r"mixture\.yaml: sed: unknown key; did you mean seed\?"),
    ("tasks: [{task: messages}]\nseed: x", r"mixture\.yaml: seed: Input should be a valid integer, it is: 'x'"),
    ("tasks: [{task: mesages, path: rows.jsonl}]", r"mixture\.yaml: tasks\[0\]: .*'mesages': did you mean messages\?"),
    ("tasks: [{task: messages, path: no.jsonl}]", r"mixture\.yaml: tasks\[0\]: .*no\.jsonl: no such file"),
    ("tasks: [{task: messages, path: mixture.yaml}]", r"mixture\.yaml: tasks\[0\]: .*unknown kind of file '\.yaml'"),
    ("tasks: [{task: messages}]", r"mixture\.yaml: tasks\[0\]: messages has no rows of its own: name a path or"),
    ("tasks: [{task: messages, split: test}]", r"mixture\.yaml: tasks\[0\]: split: messages has no dataset of its own"),
    ("tasks: [{task: arc, path: rows.jsonl, config: x}]", r"mixture\.yaml: tasks\[0\]\.config: it is of the hub, and"),
    (
        "tasks: [{task: messages, path: rows.jsonl}, {task: messages, path: rows.jsonl, rows: 41}]",
        r"mixture\.yaml: tasks\[1\]\.rows: 41, and messages has 40 rows from start to stop",
    ),
    ("tasks: [{task: messages, path: blank.jsonl}]", r"mixture\.yaml: tasks\[0\]: blank\.jsonl holds no row"),
    ("tasks: [{task: messages, path: rows.jsonl, stop: 41}]", r"tasks\[0\]\.stop: 41, and messages has 40 rows"),
    (
        "tasks: [{task: messages, path: rows.jsonl, start: 40}]",
        r"tasks\[0\]\.start: no row from 40 to 40; messages has",
    ),
    (
        "tasks: [{task: messages, path: rows.jsonl, rows: 0}]",
        r"tasks\[0\]\.rows: Input should be greater than or equal",
    ),
    (
        "tasks: [{task: messages, path: rows.jsonl, epochs: 1.5}]",
        r"tasks\[0\]\.epochs: Input should be a valid integer",
    ),
]


@pytest.mark.parametrize(("content", "problem"), BAD_MIXTURES)
def test_a_bad_mixture_is_named(rows: Path, tmp_path: Path, chat_bpe: Path, content: str, problem: str) -> None:
    file = tmp_path / "mixture.yaml"
    file.write_text(content)
    (tmp_path / "blank.jsonl").write_text("\n")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match=problem) as refused:
        build_conversations(file, tmp_path / "chat", chat_bpe)
    assert "\n" not in str(refused.value)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_mistakes_are_reported_in_one_line_without_traceback(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    with rows.open("a") as stream:
        stream.write('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    file = tmp_path / "mixture.yaml"
    file.write_text("tasks: [{task: messages, path: rows.jsonl}]")
    options = ("--output", tmp_path / "chat", "--workers", "2")
    code, out, error = run("chat", file, "--tokenizer", chat_bpe, *options)
    assert (code, out) == (2, "")
    assert error == (
        f"error: {rows}:41: messages[0].role: a conversation ends with the assistant, this one with the user; "
        "`unusable: drop` in the mixture leaves such rows out, and counts them\n"
    )
    train_tokenizer(["some text"], 300, tmp_path / "plain")
    code, out, error = run("chat", file, "--tokenizer", tmp_path / "plain", *options)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "train-tokenizer --chat" in error
    code, _, error = run("chat", tmp_path / "none.yaml", "--tokenizer", chat_bpe, *options)
    assert (code, error) == (2, f"error: {tmp_path}/none.yaml: No such file or directory\n")
