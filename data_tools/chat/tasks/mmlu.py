"""MMLU: questions on 57 subjects with four choices (arXiv 2009.03300)."""

from __future__ import annotations

from collections.abc import Mapping

from efficientbench.data_tools.chat.conversations import RowError
from efficientbench.data_tools.chat.task import Example, HubFiles, Task, multiple_choice, text_of
from efficientbench.data_tools.rows import Row

_LETTERS = ("A", "B", "C", "D")


class Mmlu(Task):
    """Reads rows of the hub (`question`, `choices`, `answer` as a number), or lines of the original CSV files."""

    name = "mmlu"
    about = "questions on 57 subjects with four choices"
    hub = HubFiles("cais/mmlu", config="auxiliary_train", split="train")
    questions = HubFiles("cais/mmlu", config="all", split="test")
    baseline = 0.25
    csv_columns = ("question", *_LETTERS, "answer")

    def example(self, row: Row) -> Example:
        if isinstance(row.get("train"), Mapping):  # the hub's auxiliary_train wraps its rows so
            row = row["train"]
        choices = row.get("choices", [row.get(letter) for letter in _LETTERS])
        if not isinstance(choices, list) or len(choices) != 4 or not all(isinstance(each, str) for each in choices):
            raise RowError(f"choices: four texts are needed, they are: {choices!r:.80}")
        answer = row.get("answer")
        if answer not in (0, 1, 2, 3, *_LETTERS) or isinstance(answer, bool):
            raise RowError(f"answer: 0 to 3 or A to D is needed, it is: {answer!r:.60}")
        # A column of numbers with a missing value has 1.0 for 1.
        right = answer if isinstance(answer, str) else _LETTERS[int(answer)]
        return multiple_choice(text_of(row, "question"), _LETTERS, choices, right)
