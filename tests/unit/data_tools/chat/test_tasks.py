"""The tasks: what they make of their rows, on real data where it is there, and how they score."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replicas.hub_server import HubState
from support.downloads import parquet
from support.outside_task import WORDS

from efficientbench.basics.errors import DataError
from efficientbench.basics.foreign import MOST_BYTES
from efficientbench.data_tools.chat.calculator import calculate
from efficientbench.data_tools.chat.conversations import CALL, RESULT, TEXT
from efficientbench.data_tools.chat.examples import Examples, open_examples
from efficientbench.data_tools.chat.find_task import TASKS
from efficientbench.data_tools.chat.mixture import open_mixture, read_mixture
from efficientbench.data_tools.chat.task import Example, HubFiles
from efficientbench.data_tools.rows import RowError

FORMATS = {
    "arc": [
        {"question": "Hot?", "choices": {"text": ["ice", "fire", "tea"], "label": ["1", "2", "3"]}, "answerKey": "2"}
    ],
    "gsm8k": [{"question": "How many?", "answer": "She has 2*3=<<2*3=6>>6, and 6/4=<<6/4=1.50>>1.50.\n#### 1,000"}],
    "mmlu": [
        {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2, "subject": "x"},
        {"train": {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2, "subject": ""}},
    ],
    "humaneval": [
        {
            "prompt": 'import math\n\n\ndef up(x: float) -> int:\n    """Round up."""\n',
            "canonical_solution": "    return math.ceil(x)\n",
            "test": "def check(candidate):\n    assert candidate(1.5) == 2\n",
            "entry_point": "up",
        }
    ],
    "messages": [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}],
}


def no_program(program: str, tests: str) -> bool:
    raise AssertionError("this task runs no program")


AS_MODULE = "import sys, types\nmodule = sys.modules['program'] = types.ModuleType('program')\n"


def in_python(program: str, tests: str) -> bool:
    whole = f"{AS_MODULE}exec({program!r}, vars(module))\n{tests}"
    return subprocess.run([sys.executable, "-I", "-c", whole], capture_output=True, check=False).returncode == 0


def written(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answer(example: Example) -> str:
    return example.messages[-1].text


def asked(example: Example) -> str:
    return example.messages[-2].text


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_read_from_each_kind_of_file(tmp_path: Path, name: str, kind: str) -> None:
    path = written(tmp_path, name, FORMATS[name][:1] * 3)
    if kind == "parquet":
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(FORMATS[name][:1] * 3), path, row_group_size=2)
    examples = open_examples(name, path)
    assert len(examples) == 3
    assert examples[2] == examples[0] == TASKS[name]().example(FORMATS[name][0])
    with pytest.raises(IndexError, match="has 3, counted from 0"):
        examples[3]
    assert [*pickle.loads(pickle.dumps(examples)).read(np.array([0, 2]))] == [examples[0], examples[2]]


def test_multiple_choice_questions_match_nanochat(tmp_path: Path) -> None:
    (arc,) = open_examples("arc", written(tmp_path, "arc", FORMATS["arc"])).read(np.array([0]))
    assert asked(arc) == (
        "Multiple Choice question: Hot?\n- ice=1\n- fire=2\n- tea=3\n\n"
        "Respond only with the letter of the correct answer."
    )
    assert (answer(arc), arc.choices, arc.reference) == ("2", ("1", "2", "3"), "2")
    plain, wrapped = map(TASKS["mmlu"]().example, FORMATS["mmlu"])
    assert plain == wrapped
    assert (answer(plain), plain.choices) == ("C", ("A", "B", "C", "D"))
    task = TASKS["arc"]()
    assert (task.score(arc, " 2\n", no_program), task.score(arc, "1", no_program)) == (1, 0)


def test_mmlu_is_read_from_its_csv_files(shared_data: Path) -> None:
    examples = open_examples("mmlu", shared_data / "mmlu" / "dev")
    first = examples[0]
    assert asked(first).startswith("Multiple Choice question: Find all c in Z_3 such that Z_3[x]/(x^2 + c) is a field")
    assert "\n- 3=D\n\nRespond" in asked(first)
    assert answer(first) == "B"
    assert len(examples) == 15
    assert len(open_examples("mmlu", shared_data / "mmlu" / "test")) == 100 + 100 + 105


def test_an_answer_read_as_a_real_number_is_accepted() -> None:
    row = {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 1.0}
    assert answer(TASKS["mmlu"]().example(row)) == "B"


def test_notes_of_gsm8k_become_calculator_calls() -> None:
    example = TASKS["gsm8k"]().example(FORMATS["gsm8k"][0])
    assert [(part.kind, part.text) for part in example.messages[-1].parts] == [
        (TEXT, "She has 2*3="),
        (CALL, "2*3"),
        (RESULT, "6"),
        (TEXT, "6, and 6/4="),
        (CALL, "6/4"),
        (RESULT, "1.5"),
        (TEXT, "1.50.\n#### 1,000"),
    ]
    assert example.reference == "1000"
    task = TASKS["gsm8k"]()
    scores = [task.score(example, each, no_program) for each in ("so #### 1000 yes", "#### 1,000", "1000", "#### 999")]
    assert scores == [1, 1, 0, 0]


def plainly_normal(number: str) -> str:
    """A noted number without commas, leading and trailing zeros that say nothing."""
    number = number.replace(",", "").lstrip("+")
    sign, number = ("-", number[1:]) if number.startswith("-") else ("", number)
    whole, _, decimals = number.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    return sign + whole + (f".{decimals}" if decimals else "")


def test_the_calculator_agrees_with_every_note_of_gsm8k(shared_data: Path) -> None:
    """What the tool says at test time is what stands in the training text."""
    text = (shared_data / "gsm8k" / "train.jsonl").read_text()
    notes = [(note.rpartition("=")[0], note.rpartition("=")[2]) for note in re.findall(r"<<([^>]+)>>", text)]
    assert len(notes) == 23716
    computed = [(calculate(expression), result) for expression, result in notes]
    assert sum(value is None for value, _ in computed) == 2
    assert [pair for pair in computed if pair[0] is not None and pair[0] != plainly_normal(pair[1])] == []


@pytest.mark.proof
def test_every_row_of_gsm8k_keeps_its_text_and_has_a_reference(shared_data: Path) -> None:
    """Cutting out the notes loses no text, and every reference is found."""
    for name, count in (("train", 7473), ("test", 1319)):
        path = shared_data / "gsm8k" / f"{name}.jsonl"
        examples = open_examples("gsm8k", path)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(examples) == count
        for row, example in zip(rows, examples.read(np.arange(count)), strict=True):
            assert answer(example) == re.sub(r"<<[^>]*>>", "", row["answer"])
            assert example.reference == row["answer"].rpartition("#### ")[2].replace(",", "")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        *(("1/3", "0.333"), ("-(2+3)*4", "-20"), ("1,000*2", "2000"), (" .5 + .25", "0.75"), ("2/3-2/3", "0")),
        *(
            ("10**20", None),
            ("1/0", None),
            ("2**3", None),
            ("abs(-1)", None),
            ("x", None),
            ("", None),
            ("1" * 101, None),
        ),
        *(("1e999", None), ("__import__('os')", None), ("'a'*9", None), ("True", None), ("(" * 99, None), ("1j", None)),
        *(("9" * 30, "9" * 30), ("1e30", "1" + "0" * 30), ("-0.0001", "0"), ("0.0005", "0.001")),
    ],
)
def test_the_calculator_evaluates_arithmetic_and_refuses_other_text(expression: str, value: str | None) -> None:
    found = calculate(expression)
    if value is None or len(value) < 20:
        assert found == value
    else:
        assert float(found or "nan") == float(value)
        assert "e" not in (found or "e")


def test_programs_are_scored_by_running_them(tmp_path: Path) -> None:
    (example,) = open_examples("humaneval", written(tmp_path, "he", FORMATS["humaneval"])).read(np.array([0]))
    task = TASKS["humaneval"]()
    body = "def up(x):\n    return math.ceil(x)\n"
    right = [answer(example), body, f"Here it is:\n```python\n{body}```\nDone.", f"```\n{body}```"]
    wrong = ["def up(x):\n    return x\n", "no program", "", "```python\ndef up(x): return 0\n```\n" + body]
    assert [task.score(example, each, in_python) for each in right] == [1] * 4
    assert [task.score(example, each, in_python) for each in wrong] == [0] * 4


def test_files_in_the_hubs_formats_are_read_and_scored(shared_data: Path) -> None:
    formats = shared_data / "formats"
    assert [example.reference for example in open_examples("arc", formats / "arc.jsonl").read(np.arange(5))] == [
        *"BB2CB"
    ]
    for name in ("humaneval", "smoltalk"):
        examples = open_examples(name, formats / f"{name}.jsonl")
        assert len(examples) == 3
        task = TASKS[name]()
        if name == "humaneval":
            assert [task.score(each, answer(each), in_python) for each in examples.read(np.arange(3))] == [1] * 3
        else:
            with pytest.raises(DataError, match="SmolTalk has no right answers"):
                task.score(examples[0], "Paris.", no_program)


def test_an_external_task_is_read_scored_and_rewarded() -> None:
    examples = open_examples("support.outside_task:Spelling")
    assert len(examples) == len(WORDS)
    apple = examples[0]
    assert (asked(apple), answer(apple)) == ("Spell apple.", "a p p l e")
    assert examples.task.score(apple, "a p p l e", no_program) == 1
    assert (examples.task.reward(apple, "a p p", no_program), examples.task.score(apple, "a p p", no_program)) == (
        *(3 / 5,),
        0,
    )


def test_a_column_system_is_the_first_message(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]
    rows = [{"conversations": turns, "system": "Be brief."}, {"conversations": turns, "history": [["Hi", "Yo"]]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = open_examples("messages", path)
    assert [(each.role, each.text) for each in examples[0].messages][:2] == [("system", "Be brief."), ("user", "Hi")]
    with pytest.raises(RowError, match=r"rows\.jsonl:2: history: .*; conversations has the earlier messages"):
        examples[1]


def test_descriptions_of_tools_are_refused_and_not_dropped(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]
    described = [None, "", "[]", [], '[{"name": "search"}]', [{"name": "search"}]]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"conversations": turns, "tools": each}) + "\n" for each in described))
    examples = open_examples("messages", path)
    assert [len(examples[number].messages) for number in range(4)] == [2] * 4
    for number in (4, 5):
        with pytest.raises(RowError, match=rf"rows\.jsonl:{number + 1}: tools: descriptions of tools are not read;"):
            examples[number]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8", "there is no task called 'gsm8': did you mean gsm8k?"),
        ("zzz", "there is no task called 'zzz': ours are smoltalk, arc, .*; yours is package.module:Class"),
        ("no_such_module:Task", "there is no module no_such_module: install its package, or name its folder in PYTHO"),
        (
            "support.outside_task:NO_TASK",
            "NO_TASK is of class str, not a class of .*chat.task.Task",
        ),
        (
            "support.outside_task:Missing",
            "task support.*: support.outside_task has no Missing",
        ),
        ("efficientbench.data_tools.chat.task:Task", "cannot be made: TypeError: Can't instantiate abstract class"),
    ],
)
def test_names_that_are_no_task_are_refused(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_examples(name)


def test_failing_external_code_is_named() -> None:
    with pytest.raises(RowError, match=r"support\.outside_task:Broken: row 2: .*ZeroDivisionError: it cannot"):
        open_examples("support.outside_task:Broken")[1]


CHOICES = {"text": ["a", "b"], "label": ["A", "B"]}


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("messages", {"conversation": [], "id": 1}, "messages: the key is missing; keys there: 'conversation', 'id'"),
        ("gsm8k", {"question": "Q", "answer": "no number"}, "answer: it has no number after '####'"),
        (
            "gsm8k",
            {"Question": "Q", "answer": "#### 1"},
            "question: a text is needed, it is: None; .* Question, answer",
        ),
        ("mmlu", {"question": "Q", "choices": ["a", "b"], "answer": 0}, "choices: four texts are needed"),
        (
            "mmlu",
            {"question": "Q", "choices": list("abcd"), "answer": 4},
            "answer: 0 to 3 or A to D is needed, it is: 4",
        ),
        ("mmlu", {"question": "Q", "choices": list("abcd"), "answer": True}, "answer: 0 to 3 or A to D"),
        ("arc", {"question": "Q", "choices": {**CHOICES, "label": ["A"]}, "answerKey": "A"}, "choices: equally many"),
        ("arc", {"question": "Q", "choices": CHOICES, "answerKey": "E"}, "answerKey: 'E' is none of the labels A, B"),
        ("humaneval", {"prompt": "def f():"}, "canonical_solution: a text is needed"),
    ],
)
def test_rows_in_the_wrong_format_are_refused(tmp_path: Path, name: str, row: dict[str, Any], message: str) -> None:
    path = written(tmp_path, name, [FORMATS[name][0], row])
    with pytest.raises(RowError, match=rf"{name}\.jsonl:2: {message}"):
        open_examples(name, path)[1]


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('"Q, with a comma",a,b,c,d,A\nQ,a,b,c,A\n')
    examples = open_examples("mmlu", tmp_path / "rows.csv")
    assert asked(examples[0]).startswith("Multiple Choice question: Q, with a comma\n- a=A")
    with pytest.raises(RowError, match=r"rows\.csv:2: 5 columns; 6 are needed: question, A"):
        examples[1]
    with pytest.raises(DataError, match=r"rows\.csv: unknown kind of file '\.csv'; known: \.jsonl, .*\.parquet"):
        open_examples("gsm8k", tmp_path / "rows.csv")
    (tmp_path / "rows.csv").write_text('Q,a,b,c,d,A\n"Q"x,a,b,c,d,A\n')
    os.truncate(tmp_path / "rows.csv", MOST_BYTES + 1)  # more than is read at once
    with pytest.raises(DataError, match=r"rows\.csv cannot be read as CSV: ',' expected after '\"'"):
        open_examples("mmlu", tmp_path / "rows.csv")
    (tmp_path / "rows.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"rows\.parquet cannot be read as parquet"):
        open_examples("mmlu", tmp_path / "rows.parquet")
    (tmp_path / "bad.jsonl").write_bytes(
        b"\n".join([b"\xef\xbb\xbf{}", b"", b"{", b"[1]", b'{"a": "\xff"}', b"9" * 5000])
    )
    bad = Examples("messages", TASKS["messages"](), [tmp_path / "bad.jsonl"])
    for number, line, problem in (
        (0, 1, "messages: the key is missing; keys there: none"),
        (1, 3, "not JSON at character"),
        (2, 4, r"a row is one JSON object, this one is \[1\]"),
        (3, 5, "not UTF-8: byte 8 of the line is 0xff"),
        (4, 6, "not JSON that can be read"),
    ):
        with pytest.raises(RowError, match=rf"bad\.jsonl:{line}: {problem}"):
            bad[number]


CARD = {
    "configs": [
        {
            "config_name": "main",
            "data_files": [{"split": "train", "path": "main/train-*"}, {"split": "test", "path": "main/test-*"}],
        },
        {"config_name": "default", "data_files": [{"split": "train", "path": "plain/*"}]},
    ]
}


@pytest.fixture
def gsm8k_hub(hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubState:
    """A hub that has GSM8K, with one row in each split."""
    monkeypatch.chdir(tmp_path)
    hub.repository, hub.card = "openai/gsm8k", CARD
    rows = {split: {"question": f"{split}?", "answer": "#### 1"} for split in ("train", "test", "plain")}
    hub.files = {
        "main/train-0.parquet": parquet(pa.Table.from_pylist([rows["train"]] * 2)),
        "main/test-0.parquet": parquet(pa.Table.from_pylist([rows["test"]])),
        "plain/0.jsonl": json.dumps(rows["plain"]).encode(),
        "README.md": b"#",
    }
    return hub


def test_the_split_of_a_hub_dataset_can_be_chosen(gsm8k_hub: HubState, tmp_path: Path) -> None:
    train = open_examples("gsm8k")
    assert [asked(train[number]) for number in range(len(train))] == ["train?"] * 2
    assert train.files == [Path("data/gsm8k/main/train-0.parquet")]
    assert not (tmp_path / "data" / "gsm8k" / "main" / "test-0.parquet").exists()
    told: list[str] = []
    tested = open_examples("gsm8k", hub=HubFiles("openai/gsm8k", "main", "test"), on_progress=lambda: told.append("it"))
    assert asked(tested[0]) == "test?"
    assert told
    assert asked(open_examples("gsm8k", hub=HubFiles("openai/gsm8k", split="train"))[0]) == "plain?"
    with pytest.raises(DataError, match=r"configuration 'main' has no split 'dev': its card declares train, test"):
        open_examples("gsm8k", hub=HubFiles("openai/gsm8k", "main", "dev"))


def test_a_mixture_downloads_the_dataset_of_its_task(gsm8k_hub: HubState, tmp_path: Path) -> None:
    file = tmp_path / "mixture.yaml"
    file.write_text("tasks: [{task: gsm8k}, {task: gsm8k, split: test}, {task: gsm8k, dataset: openai/gsm8k}]")
    sources = open_mixture(read_mixture(file), file)
    assert [asked(source.examples[0]) for source in sources] == ["train?", "test?", "test?"]
    # Without a configuration: all files of the dataset.
    assert [len(source.numbers) for source in sources] == [2, 1, 4]
