"""HumanEval: Python functions to complete, with their tests (arXiv 2107.03374)."""

from __future__ import annotations

import re

from efficientbench.data_tools.chat.conversations import read_messages
from efficientbench.data_tools.chat.task import Example, HubFiles, RunProgram, Task, text_of
from efficientbench.data_tools.rows import Row

_FENCED = re.compile(r"```(?:python)?[^\S\n]*\n(.*?)```", re.DOTALL)
_IMPORT = re.compile(r"(?:import|from)\s")


class HumanEval(Task):
    """Reads rows with `prompt`, `canonical_solution`, `test` and `entry_point`; scores an answer by running it."""

    name = "humaneval"
    about = "Python functions to complete, which their tests run"
    hub = questions = HubFiles("openai/openai_humaneval", config="openai_humaneval", split="test")
    baseline = 0.0
    runs_programs = True

    def example(self, row: Row) -> Example:
        prompt, solution = text_of(row, "prompt"), text_of(row, "canonical_solution")
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": prompt + solution}]
        facts = {"prompt": prompt, "solution": solution}
        facts |= {key: text_of(row, key) for key in ("test", "entry_point")}
        return Example(read_messages(messages), facts=facts)

    def score(self, example: Example, completion: str, run: RunProgram) -> float:
        return float(run(program(example, completion), tests(example)))


def program(example: Example, completion: str) -> str:
    """Return the question's imports and the answer: the first fenced block of the completion, or all of it."""
    fenced = _FENCED.search(completion)
    imports = [line for line in example.facts["prompt"].splitlines() if _IMPORT.match(line)]
    answer = fenced[1] if fenced else completion
    return "\n\n".join(["\n".join(imports), answer]) + "\n"


def tests(example: Example) -> str:
    """Return the tests, which fail for a wrong answer. Helper functions that they call come from the question."""
    name, prompt = example.facts["entry_point"], example.facts["prompt"]
    lines = [prompt + example.facts["solution"], f"from program import {name}", example.facts["test"], f"check({name})"]
    return "\n\n".join(lines) + "\n"
