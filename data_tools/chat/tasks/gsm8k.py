"""GSM8K: math word problems, whose answers call a calculator (arXiv 2110.14168)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from efficientbench.data_tools.chat.calculator import calculate
from efficientbench.data_tools.chat.conversations import CALL, RESULT, TEXT, RowError, read_messages
from efficientbench.data_tools.chat.task import Example, HubFiles, RunProgram, Task, text_of
from efficientbench.data_tools.rows import Row

_CALL = re.compile(r"<<([^<>]*)=([^<>=]*)>>")
_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


class Gsm8k(Task):
    """Reads rows with `question` and `answer`; a note `<<48/2=24>>` in an answer becomes a call of the calculator."""

    name = "gsm8k"
    about = "math word problems, whose answers call a calculator"
    hub = HubFiles("openai/gsm8k", config="main", split="train")
    questions = HubFiles("openai/gsm8k", config="main", split="test")
    baseline = 0.0

    def example(self, row: Row) -> Example:
        question, answer = text_of(row, "question"), text_of(row, "answer")
        right = final_number(answer)
        if right is None:
            raise RowError("answer: it has no number after '####'")
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": list(_parts(answer))}]
        return Example(read_messages(messages), reference=right)

    def score(self, example: Example, completion: str, run: RunProgram) -> float:
        return float(final_number(completion) == example.reference)


def final_number(answer: str) -> str | None:
    """Return the number after the first `####` of an answer, without commas; None if there is none."""
    found = _ANSWER.search(answer)
    return found[1].replace(",", "") if found else None


def _parts(answer: str) -> Iterator[dict[str, str]]:
    end = 0
    for call in _CALL.finditer(answer):
        if call.start() > end:
            yield {"type": TEXT, "text": answer[end : call.start()]}
        expression, noted = call[1].strip(), call[2].strip()
        if expression and noted:
            # The result is as the tool writes it: notes write numbers in several ways (.5, 2.00, 1,000).
            yield {"type": CALL, "text": expression}
            yield {"type": RESULT, "text": calculate(expression) or noted}
        end = call.end()
    if answer[end:]:
        yield {"type": TEXT, "text": answer[end:]}
