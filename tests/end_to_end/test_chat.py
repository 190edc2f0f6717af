"""`efficientbench chat` and `serve` on the folders of finished runs, as their users start them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from support.chat_tokenizers import of_bytes
from support.command_line import TIME_LIMIT_S, Finished, command, efficientbench, environment, free_port, started
from support.conversation_pairs import VOCABULARY, write_conversations

pytestmark = pytest.mark.proof

OWN = (f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("pair"), 300)


@pytest.fixture(scope="module")
def talks(train: Callable[..., Finished], pair: Path) -> Path:
    """The folder of a run that learned to answer with exclamation marks."""
    finished = train("training.objective=sft", "training.steps=60", *OWN, f"data.path={pair}")
    assert finished.done.returncode == 0, finished.done.stderr
    return finished.folder


def test_chat_gives_one_answer_or_a_conversation(talks: Path, tmp_path: Path) -> None:
    # A repeat has the name of all.
    folder = tmp_path / "elsewhere" / "seed_7"
    shutil.copytree(talks, folder)
    words = ("chat", str(folder), "--temperature", "0", "--max-new-tokens", "12")
    alone = efficientbench(*words, "-p", "7??", expect=0, cwd=tmp_path).stdout
    assert alone.strip()
    rounded = efficientbench(*words, "-p", "7??", "--weights", "int8", expect=0, cwd=tmp_path)
    assert rounded.stdout.strip()
    assert "weights: int8 by " in rounded.stderr
    typed = "7??\n8??\nclear\n\n7??\nquit\nnever read\n"
    done = subprocess.run(
        command(*words),
        input=typed,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    header, first, second, *_, again, end = done.stdout.split("> ")
    assert (second != "", end) == (True, "")
    assert header.startswith("elsewhere, step 60; clear starts anew")
    assert first == again == alone
    # Input that ends without `quit`, with bytes that are no text in most languages' locales; that of C takes all.
    strict = environment(PYTHONIOENCODING="utf-8:strict")
    damaged = subprocess.run(
        command(*words), input=b"\xff\n7??\n", env=strict, capture_output=True, check=False, timeout=TIME_LIMIT_S
    )
    assert damaged.returncode == 0, damaged.stderr
    assert b"error: messages[0].content: " in damaged.stderr
    assert damaged.stdout.decode().endswith(f"> > {alone}> \n")
    empty = efficientbench(*words, "-p", " ", expect=2).stderr
    assert empty.endswith("error: messages[0].content: the message is empty\n")


def test_a_server_answers_until_it_is_stopped(talks: Path) -> None:
    refused = efficientbench("serve", str(talks), "training.steps=3", expect=2)
    assert "all else is the run's own" in refused.stderr
    with started("serve", str(talks), "--port", "0", "--models", "2", "--weights", "int8") as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.fullmatch(r"([\w.]+), step 60: (http://127\.0\.0\.1:(\d+))\n", line)
        assert found is not None, line + server.communicate(timeout=TIME_LIMIT_S)[1]
        name, url, port = found.groups()
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        asked = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "7??"}], max_tokens=12)
        assert asked.choices[0].message.content
        taken = efficientbench("serve", str(talks), "--port", port, expect=2).stderr
        assert re.fullmatch(
            rf"error: --host 127\.0\.0\.1 --port {port}: another program listens there; --port \d+ is free\n", taken
        )
        # One that is still given ends with the server.
        long = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "7??"}], max_tokens=4096, temperature=2, stream=True
        )
        assert next(iter(long)).choices[0].delta.role == "assistant"
        server.send_signal(signal.SIGINT)
        out, error = server.communicate(timeout=TIME_LIMIT_S)
        assert (out, "Traceback" in error) == ("", False), error
        assert "weights: int8 by " in error
        assert server.returncode == 0


def test_other_interfaces_are_refused_without_a_key(talks: Path) -> None:
    done = efficientbench("serve", str(talks), "--host", "0.0.0.0", "--port", str(free_port()), expect=2)
    assert "--host 0.0.0.0: other machines may reach it, so it needs a key" in done.stderr
    short = efficientbench("serve", str(talks), EFFICIENTBENCH_KEY="short", expect=2).stderr
    assert "a key has 16 or more characters" in short


def test_a_run_that_is_no_chat_model_is_refused_with_the_command_to_train_one(
    train: Callable[..., Finished], pair: Path, tmp_path: Path
) -> None:
    plain = train().folder
    done = efficientbench("chat", str(plain), "-p", "Hi", expect=2)
    assert f"the tokenizer of {plain} has no chat tokens" in done.stderr
    assert "Train one with `efficientbench-data train-tokenizer --chat DATA --output FOLDER`" in done.stderr
    of_bytes(tmp_path / "bpe")
    lines = [json.dumps({"text": f"Line {number} of some text."}) for number in range(2000)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    base = train(*OWN, f"data.path={tmp_path / 'text.jsonl'}", f"data.tokenizer={tmp_path / 'bpe'}").folder
    done = efficientbench("serve", str(base), expect=2)
    assert f"{base} has learned text, and no conversations" in done.stderr
    assert f"training.objective=sft init.run={base}" in done.stderr
    assert "Traceback" not in done.stderr
    # Mid-training learns every token of conversations.
    mid = train(*OWN, f"data.path={pair}", f"init.run={base}")
    assert mid.done.returncode == 0, mid.done.stderr
    done = efficientbench("chat", str(mid.folder), "-p", "7??", expect=0)
    assert "warning" not in done.stderr
    # Elsewhere nobody can tell.
    os.rename(pair.parent, pair.parent.with_name("moved"))
    try:
        done = efficientbench("chat", str(mid.folder), "-p", "7??", expect=0)
    finally:
        os.rename(pair.parent.with_name("moved"), pair.parent)
    assert "are not here to tell whether they were conversations" in done.stderr
