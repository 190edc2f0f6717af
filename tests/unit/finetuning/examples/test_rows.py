"""Rows of examples: three forms, three kinds of files, and what is said of bad ones."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.examples import Examples
from efficientbench.data_tools.chat.find_task import find_task
from efficientbench.finetuning.examples.rows import read_rows

LEVELS = ("explain", "reasoning", "topology")
ALPACA = {"instruction": "Add.", "input": "1 + 1", "output": "2", "difficulty": "explain"}
PAIR = {"prompt": "Add.\n1 + 1", "completion": "2", "difficulty": "explain"}
CHAT = {
    "messages": [{"role": "user", "content": "Add.\n1 + 1"}, {"role": "assistant", "content": "2"}],
    "difficulty": "explain",
}
CALLS = {
    "role": "assistant",
    "content": [
        {"type": "python", "text": "1+1"},
        {"type": "python_output", "text": "2"},
        {"type": "text", "text": "2"},
    ],
}


def write(path: Path, rows: list[Any]) -> str:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows))
    return str(path)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
@pytest.mark.parametrize("row", [ALPACA, PAIR, CHAT], ids=["instruction", "prompt", "messages"])
def test_all_forms_of_an_example_give_the_same_row(tmp_path: Path, row: dict[str, Any], suffix: str) -> None:
    (read,) = read_rows(write(tmp_path / f"rows{suffix}", [row]), "difficulty", LEVELS)
    assert read.messages == tuple(CHAT["messages"])
    assert read.difficulty == "explain"


SYSTEM = {"role": "system", "content": "Be brief."}
EARLIER = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
SHAREGPT = {"conversations": [{"from": "human", "value": "Add.\n1 + 1"}, {"from": "gpt", "value": "2"}]}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("row", "before"),
    [
        ({**ALPACA, "system": "Be brief.", "history": [["Hi", "Yo"]]}, [SYSTEM, *EARLIER]),
        ({**ALPACA, "system": "", "history": [], "tools": "[]"}, []),
        ({**SHAREGPT, "system": "Be brief."}, [SYSTEM]),
        ({**PAIR, "system": "Be brief."}, [SYSTEM]),
        ({"system": "Be brief.", "messages": [SYSTEM, *CHAT["messages"]]}, [SYSTEM]),
    ],
)
def test_columns_system_and_history_come_before_the_question(
    tmp_path: Path, row: dict[str, Any], before: list[Any], suffix: str
) -> None:
    (read,) = read_rows(write(tmp_path / f"rows{suffix}", [row]), "difficulty", LEVELS)
    assert read.messages == (*before, *CHAT["messages"])


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path, suffix: str) -> None:
    path = Path(write(tmp_path / f"rows{suffix}", [ALPACA]))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    (read,) = read_rows(str(path), "difficulty", LEVELS)
    assert read.messages == tuple(CHAT["messages"])


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"instruction": "a", "ouput": "b"}, "did you mean output for ouput?"),
        ({**ALPACA, "output": 3}, "output: '3' is no text"),
        ({**ALPACA, "output": " "}, "output: the last message is no answer"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages: the last message is no answer"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role: 'robot' is none of system"),
        ({"conversations": [{"from": "bot", "value": "a"}]}, "[0].from: 'bot' is none of system, human, gpt"),
        ({"messages": [{"role": "user", "content": "a"}, {**CALLS, "tool_calls": [1]}]}, "messages[1].tool_calls: unk"),
        ({"messages": [{"role": "user", "content": "a"}, CALLS]}, "messages: it calls the calculator"),
        ({"messages": [*CHAT["messages"][:1], {**CHAT["messages"][1], "loss_weight": 0}]}, "there is nothing to learn"),
        ({**ALPACA, "system": 5}, "system: a text is needed, it is: 5"),
        ({**ALPACA, "history": [["Hi"]]}, "history: a list of pairs [question, answer] is needed, it is: [['Hi']]"),
        ({**PAIR, "history": [["Hi", "Yo"]]}, "history: it is read beside instruction and output alone; prompt has"),
        (
            {**SHAREGPT, "tools": '[{"name": "search"}]'},
            "tools: descriptions of tools are not read; put them",
        ),
        (
            {**ALPACA, "tools": '[{"name": "search"}]'},
            "tools: descriptions of tools are not read; put them",
        ),
        (
            {"messages": [SYSTEM, *CHAT["messages"]], "system": "Sing."},
            "system: the messages begin with another system",
        ),
        (["a"], "a row is one JSON object, this one is ['a']; an example is {instruction, input, output}"),
    ],
)
def test_a_bad_row_is_reported_with_file_line_and_key(tmp_path: Path, row: Any, told: str) -> None:
    path = write(tmp_path / "rows.jsonl", [ALPACA, row])
    with pytest.raises(DataError) as caught:
        read_rows(path, "difficulty", LEVELS)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert told in str(caught.value)


def test_unusable_rows_are_left_out_and_counted_by_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    asked = [{"messages": [{"role": "user", "content": text}]} for text in ("a", "b")]
    rows = [json.dumps(row) for row in (ALPACA, asked[0], PAIR, asked[1], CHAT)]
    path.write_text("\n".join(["{broken", *rows, "5"]))
    dropped = Counter[str]()
    read = read_rows(str(path), "difficulty", LEVELS, dropped)
    assert [row.place for row in read] == [f"{path}:{line}" for line in (2, 4, 6)]
    assert {reason[:20]: count for reason, count in dropped.items()} == {
        "not JSON at characte": 1,
        "messages: the last m": 2,
        "a row is one JSON ob": 1,
    }
    path.write_text("{broken")
    with pytest.raises(DataError, match="holds no example; left out: not JSON"):
        read_rows(str(path), "difficulty", LEVELS, dropped)


@pytest.mark.parametrize("names", [("messages", "role", "content"), ("conversations", "from", "value")])
def test_parts_and_weights_are_those_of_data_chat(tmp_path: Path, names: tuple[str, str, str]) -> None:
    key, role, content = names
    parts = [{"type": "text", "text": "1, "}, {"type": "text", "text": "2"}]
    turns = [
        {role: "user", content: "Count."},
        {role: "assistant", content: "No.", "loss_weight": 0},
        {role: "human", content: "Please."},
        {role: "gpt", content: parts},
    ]
    path = write(tmp_path / "rows.jsonl", [{key: turns}])
    (read,) = read_rows(path, "difficulty", LEVELS)
    assert [(each["role"], each["content"], each.get("loss_weight")) for each in read.messages] == [
        ("user", "Count.", None),
        ("assistant", "No.", 0),
        ("user", "Please.", None),
        ("assistant", "1, 2", None),
    ]
    assert len(Examples("messages", find_task("messages"), [Path(path)])[0].messages) == 4


def test_invalid_json_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ALPACA) + "\n{broken\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not JSON at character 2 .*; an example is \{instruction"):
        read_rows(str(path), "difficulty", LEVELS)


def test_a_sparse_hole_of_gigabytes_is_refused_as_too_long_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{json.dumps(ALPACA)}\n")
    os.truncate(path, 1 << 33)
    with pytest.raises(DataError, match=r"rows\.jsonl:3: the line has more than 268,435,456 bytes"):
        read_rows(str(path), "difficulty", LEVELS)


@pytest.mark.parametrize("begin", ["", "\n \n"])
def test_a_list_over_many_lines_is_one_json_text(tmp_path: Path, begin: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(begin + json.dumps([ALPACA, CHAT], indent=1))
    read = read_rows(str(path), "difficulty", LEVELS)
    assert [row.place for row in read] == [f"{path}: item 1", f"{path}: item 2"]
    assert all(row.messages == tuple(CHAT["messages"]) for row in read)


def test_csv_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("instruction,output\na,b\n")
    with pytest.raises(DataError, match=r"data\.path: .*rows\.csv is CSV; a JSON, JSONL or parquet file serves"):
        read_rows(str(tmp_path / "rows.csv"), "difficulty", LEVELS)


def test_a_missing_file_of_examples_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no file; a JSON, JSONL or parquet file serves"):
        read_rows(str(tmp_path / "none.json"), "difficulty", LEVELS)


def test_a_modelscope_dataset_needs_a_named_file() -> None:
    with pytest.raises(DataError, match="`efficientbench-data download modelscope:owner/some` brings its files"):
        read_rows("modelscope:owner/some", "difficulty", LEVELS)


def test_examples_of_pythons_manual_have_levels_by_answer_length() -> None:
    rows = read_rows(None, "difficulty", LEVELS)
    assert len(rows) > 500
    lengths = {level: [len(row.messages[-1]["content"]) for row in rows if row.difficulty == level] for level in LEVELS}
    assert max(lengths["explain"]) <= min(lengths["reasoning"]) <= max(lengths["reasoning"]) <= min(lengths["topology"])
