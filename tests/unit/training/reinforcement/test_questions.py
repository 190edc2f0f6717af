"""The questions of a step: which, in which order, and which are never asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.chat_tokenizers import of_bytes
from support.configs import tiny
from support.outside_rewards import write_questions

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.training.reinforcement.questions import Questions, check_rewards

ROWS, PER_STEP = 5, 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return of_bytes(tmp_path_factory.mktemp("bytes"))


def config_of(rows: Path, *overrides: str) -> RunConfig:
    words = ("training.objective=rl", "rl.samples=4", "rl.max_new_tokens=4", f"rl.questions={rows}")
    return tiny("gqa_1.5B", *words, *overrides)


def asked(config: RunConfig, tokenizer: TextTokenizer, steps: range) -> list[tuple[int, int]]:
    questions = Questions(config, tokenizer, "of bytes")
    return [(turn, question.row) for step in steps for turn, question in questions.of_step(step)]


def test_each_epoch_asks_all_questions_in_a_new_order(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    config = config_of(write_questions(tmp_path / "rows.jsonl", ROWS))
    # Ten questions in five steps: two epochs.
    found = asked(config, tokenizer, range(1, 6))
    turns, rows = zip(*found, strict=True)
    assert turns == tuple(range(2 * ROWS))
    assert sorted(rows[:ROWS]) == sorted(rows[ROWS:]) == list(range(ROWS))
    assert rows[:ROWS] != rows[ROWS:]
    # As a run that resumes after step 3 sees it.
    assert asked(config, tokenizer, range(4, 6)) == found[3 * PER_STEP :]
    other = config.model_copy(update={"training": config.training.model_copy(update={"seed": 7})})
    assert asked(other, tokenizer, range(1, 6)) != found
    # The order has a seed of its own.
    kept, same = (
        each.model_copy(update={"data": each.data.model_copy(update={"seed": seed})})
        for each, seed in ((other, config.training.seed), (config, 7))
    )
    assert asked(kept, tokenizer, range(1, 6)) == found
    assert asked(same, tokenizer, range(1, 6)) == asked(other, tokenizer, range(1, 6))


def test_a_prompt_ends_where_the_assistant_speaks(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    questions = Questions(config_of(write_questions(tmp_path / "rows.jsonl", 1)), tokenizer, "of bytes")
    [question] = questions.asked
    special = questions.renderer.token_ids
    text = questions.renderer.encode("0?").tolist()
    markers = [special[f"<|{name}|>"] for name in ("bos", "user_start", "user_end", "assistant_start")]
    assert question.prompt == [*markers[:2], *text, *markers[2:]]
    assert question.example.reference == "0"


def test_a_question_without_room_for_an_answer_is_counted(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = write_questions(tmp_path / "rows.jsonl", ROWS)
    long = {"question": "?" * 10, "answer": "#### 10"}
    rows.write_text(rows.read_text() + f"{json.dumps(long)}\n")
    # 6 tokens of a short question, 14 of the long one and 4 of an answer; 17 tokens in a sequence of 16 positions.
    questions = Questions(config_of(rows), tokenizer, "of bytes")
    assert (len(questions.asked), questions.too_long) == (ROWS, 1)
    assert len(Questions(config_of(rows, "training.seq_len=17"), tokenizer, "of bytes").asked) == ROWS + 1
    message = "none of the 6 questions of gsm8k has at most 5 tokens, which training.seq_len=16"
    with pytest.raises(ConfigError, match=message):
        Questions(config_of(rows, "rl.max_new_tokens=12"), tokenizer, "of bytes")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl.reward=gsm8"], "there is no reward called 'gsm8'"),
        (["rl.test_every=2"], "rl.test_questions: missing: a file, folder or glob of the rows of gsm8k"),
        (["rl.test_every=2", "rl.test_questions=nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_tasks_that_cannot_be_rewarded_or_tested_are_refused(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    config = config_of(write_questions(tmp_path / "rows.jsonl", 1), *overrides)
    with pytest.raises(Exception, match=message) as found:
        check_rewards(config.rl)
    assert type(found.value).__name__ in ("ConfigError", "DataError")


PROGRAM = {"prompt": "def up(x):\n", "canonical_solution": "    return x + 1\n", "test": "pass", "entry_point": "up"}
TALK = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("smoltalk", TALK, r"^reward of smoltalk, .*rows\.jsonl:1, answer 1: '': SmolTalk has no right answers"),
        (
            "humaneval",
            PROGRAM,
            r"^reward of humaneval, .*rows\.jsonl:1, answer 1: '': its answers are programs",
        ),
    ],
)
def test_a_task_without_rewards_needs_a_named_reward(
    tmp_path: Path, task: str, row: dict[str, Any], message: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row))
    with pytest.raises(ConfigError, match=message):
        check_rewards(config_of(rows, f"rl.task={task}").rl)
    rewarded = (f"rl.task={task}", "rl.reward=support.outside_rewards:ascii_share")
    check_rewards(config_of(rows, *rewarded).rl)
    untested = {"humaneval": "the answers to humaneval are programs, which a train", "smoltalk": "no right answers"}
    with pytest.raises((ConfigError, DataError), match=untested[task]):
        check_rewards(config_of(rows, *rewarded, "rl.test_every=2", f"rl.test_questions={rows}").rl)


def test_an_external_task_makes_and_rewards_its_questions(tokenizer: TextTokenizer) -> None:
    words = ("training.objective=rl", "rl.samples=4", "rl.max_new_tokens=4", "training.seq_len=32")
    config = tiny("gqa_1.5B", *words, "rl.task=support.outside_task:Spelling")
    check_rewards(config.rl)
    questions = Questions(config, tokenizer, "of bytes")
    assert [each.example.reference for each in questions.asked][:2] == ["a p p l e", "p e a r"]


def test_a_file_without_rows_is_named(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    empty, rows = tmp_path / "empty.jsonl", write_questions(tmp_path / "rows.jsonl", 1)
    empty.write_text("\n")
    with pytest.raises(ConfigError, match=r"^rl.questions: .*empty\.jsonl has no rows$"):
        Questions(config_of(empty), tokenizer, "of bytes")
    with pytest.raises(ConfigError, match=r"^rl.test_questions: .*empty\.jsonl has no rows$"):
        check_rewards(config_of(rows, "rl.test_every=2", f"rl.test_questions={empty}").rl)


def test_rl_without_questions_is_refused(tokenizer: TextTokenizer) -> None:
    config = tiny("gqa_1.5B", "training.objective=rl", "rl.samples=4", "rl.max_new_tokens=4")
    with pytest.raises(ConfigError, match="rl.questions: missing"):
        Questions(config, tokenizer, "of bytes")
