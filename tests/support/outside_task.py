"""Tasks from outside the project, as a user writes them."""

from __future__ import annotations

from collections.abc import Sequence

from support.outside_rewards import ascii_share

from efficientbench.data_tools.chat.conversations import read_messages
from efficientbench.data_tools.chat.task import Example, RunProgram, Task
from efficientbench.data_tools.rows import Row

WORDS = ["apple", "pear", "plum", "cherry", "fig"]


class Spelling(Task):
    """Makes its rows itself; the reward knows more than right and wrong."""

    def rows(self) -> Sequence[Row]:
        return [{"word": word} for word in WORDS]

    def example(self, row: Row) -> Example:
        spelled = " ".join(row["word"])
        messages = [
            {"role": "user", "content": f"Spell {row['word']}."},
            {"role": "assistant", "content": spelled},
        ]
        return Example(read_messages(messages), reference=spelled)

    def reward(self, example: Example, completion: str, run: RunProgram) -> float:
        wanted = (example.reference or "").split()
        given = completion.split()
        return sum(a == b for a, b in zip(wanted, given, strict=False)) / len(wanted)


class Plain(Spelling):
    """Rewards what no answer of an untrained model is scored for."""

    def reward(self, example: Example, completion: str, run: RunProgram) -> float:
        return ascii_share(example, completion)


class Counting(Spelling):
    """Answers call the calculator, first, between texts, twice in a row or last."""

    def example(self, row: Row) -> Example:
        letters = str(len(row["word"]))
        said, short = {"type": "text", "text": f"{letters} letters"}, {"type": "text", "text": "So "}
        call = [{"type": "python", "text": f"{letters}*1"}, {"type": "python_output", "text": letters}]
        orders = [[said, *call, said], [*call, short, said], [short, *call, *call, said], [short, *call], [said]]
        messages = [
            {"role": "user", "content": f"How long is {row['word']}?"},
            {"role": "assistant", "content": orders[WORDS.index(row["word"])]},
        ]
        return Example(read_messages(messages), reference=f"{letters} letters")


class Broken(Spelling):
    def example(self, row: Row) -> Example:
        raise ZeroDivisionError("it cannot be")


class Unscored(Spelling):
    def score(self, example: Example, completion: str, run: RunProgram) -> float:
        raise ZeroDivisionError("it cannot be scored")


class Moving(Spelling):
    def score(self, example: Example, completion: str, run: RunProgram) -> float:
        raise ZeroDivisionError("it clears the screen: \x1b[2J")


NO_TASK = "a text"
