"""Tasks of others that are not right: each is told in one line, and none ends in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.build import build_conversations
from efficientbench.data_tools.chat.examples import open_examples
from efficientbench.data_tools.rows import RowError

MINE = """
from efficientbench.data_tools.chat.task import Example, Task

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]

class Forgetful(Task):
    def rows(self):
        return [{}, {}]
    def example(self, row):
        Example(())

class Unread(Forgetful):
    def example(self, row):
        return Example(TALK)

class Empty(Forgetful):
    def example(self, row):
        return Example(())

class Streaming(Forgetful):
    def rows(self):
        yield {}

class Offline(Forgetful):
    def rows(self):
        raise ConnectionError("no such host")
"""
EXAMPLES = [
    ("Forgetful", "its task's `example` returned None: an Example is needed"),
    ("Unread", "its task's Example has the messages [{'role': 'user', 'content': 'Hi'}, "),
    ("Empty", "its task's Example has the messages (): those of read_messages are needed"),
]
ROWS = [
    ("Streaming", "cannot make its rows: `rows` returned <generator object Streaming.rows at "),
    ("Offline", "cannot make its rows: ConnectionError: no such host"),
]


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of tasks that a user has written."""
    (tmp_path / "my_wrong_tasks.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(("name", "message"), EXAMPLES)
def test_an_invalid_example_is_named_with_its_row(name: str, message: str) -> None:
    with pytest.raises(RowError) as refused:
        open_examples(f"my_wrong_tasks:{name}")[1]
    assert str(refused.value).startswith(f"my_wrong_tasks:{name}: row 2: {message}")


@pytest.mark.parametrize(("name", "message"), ROWS)
def test_rows_that_fail_to_load_are_named(name: str, message: str) -> None:
    with pytest.raises(DataError) as refused:
        open_examples(f"my_wrong_tasks:{name}")
    assert str(refused.value).startswith(f"my_wrong_tasks:{name} {message}")


@pytest.mark.parametrize(("name", "message"), [*EXAMPLES, *ROWS])
def test_a_mixture_with_a_wrong_task_leaves_no_file(tmp_path: Path, chat_bpe: Path, name: str, message: str) -> None:
    file = tmp_path / "mixture.yaml"
    file.write_text(f'tasks: [{{task: "my_wrong_tasks:{name}"}}]')
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(DataError) as refused:
        build_conversations(file, tmp_path / "chat", chat_bpe)
    assert message in str(refused.value)
    assert {path.name for path in tmp_path.iterdir()} - {"chat.lock", "__pycache__"} == before - {"__pycache__"}
