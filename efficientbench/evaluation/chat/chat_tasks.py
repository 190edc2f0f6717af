"""Make a chat task by its name, ours or one from outside; and ChatCORE, the combined score of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from efficientbench.basics.errors import ConfigError
from efficientbench.data_tools.chat.find_task import TASKS, find_task
from efficientbench.evaluation.chat.categorical import Categorical
from efficientbench.evaluation.chat.generative import NEEDS_CODE, Generative
from efficientbench.evaluation.chat.questions import Questions
from efficientbench.evaluation.task import Options, Summary, Task

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened

BASELINES = {name: task.baseline for name, task in TASKS.items() if task.baseline is not None}
"""The accuracy of guessing in ChatCORE's five tasks (nanochat, scripts/chat_eval.py of 14 October 2025)."""


def make_chat_task(name: str, run: Opened, options: Options) -> Task:
    """Bind a chat task to a model: categorical if every question has choices, else generative.

    Args:
        name: a chat task's name, ours or one from outside.
        run: the opened run.
        options: the command's options.

    Raises:
        ConfigError: the task's rows are missing, or its answers are programs, which may not run.
        DataError: a row is not in the task's form, or the tokenizer cannot render the questions.
    """
    if find_task(name).runs_programs and not options.allow_code:
        raise ConfigError(f"{name}: {NEEDS_CODE}")
    questions = Questions(name, run, options)
    kind = Categorical if all(each.example.choices for each in questions.by_name.values()) else Generative
    # The name of the result files, without a colon.
    return kind(name.replace(":", "."), run, options, questions)


def chat_core(summaries: Mapping[str, Summary]) -> Summary | None:
    """Return ChatCORE, the mean of (accuracy − baseline) / (1 − baseline) over five tasks; None if one is missing."""
    if not BASELINES.keys() <= summaries.keys():
        return None
    centred, errors = {}, []
    for name, baseline in BASELINES.items():
        accuracy, error = summaries[name].figures["accuracy"], summaries[name].parts.get("standard_error")
        assert accuracy is not None
        centred[name] = (accuracy - baseline) / (1 - baseline)
        # A single question has no standard error.
        errors.append(math.nan if error is None else error / (1 - baseline))
    error = math.hypot(*errors) / len(errors)
    parts = {"centred": centred, "standard_error": None if math.isnan(error) else error}
    return Summary({"chat_core": fmean(centred.values())}, parts=parts)
