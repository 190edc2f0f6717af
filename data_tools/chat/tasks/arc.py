"""ARC: school science questions with three to five choices (arXiv 1803.05457)."""

from __future__ import annotations

from collections.abc import Mapping

from efficientbench.data_tools.chat.conversations import RowError
from efficientbench.data_tools.chat.task import Example, HubFiles, Task, multiple_choice, text_of
from efficientbench.data_tools.rows import Row

_DATASET = "allenai/ai2_arc"


class Arc(Task):
    """Reads rows with `question`, `choices` (`text`, `label`) and `answerKey`; `config`: ARC-Easy or ARC-Challenge."""

    name = "arc"
    about = "school science questions with three to five choices"
    hub = HubFiles(_DATASET, config="ARC-Easy", split="train")

    def example(self, row: Row) -> Example:
        choices = row.get("choices")
        parts = choices if isinstance(choices, Mapping) else {}
        texts, labels = _texts(parts.get("text")), _texts(parts.get("label"))
        if not texts or len(texts) != len(labels):
            raise RowError(f"choices: equally many texts under text and label are needed, they are: {choices!r:.80}")
        right = text_of(row, "answerKey")
        if right not in labels:
            raise RowError(f"answerKey: {right!r} is none of the labels {', '.join(labels)}")
        return multiple_choice(text_of(row, "question"), labels, texts, right)


class ArcEasy(Arc):
    """ARC's easy questions."""

    name = "arc_easy"
    questions = HubFiles(_DATASET, config="ARC-Easy", split="test")
    baseline = 0.25


class ArcChallenge(Arc):
    """ARC's questions that simple methods do not answer."""

    name = "arc_challenge"
    hub = HubFiles(_DATASET, config="ARC-Challenge", split="train")
    questions = HubFiles(_DATASET, config="ARC-Challenge", split="test")
    baseline = 0.25


def _texts(value: object) -> list[str]:
    """Return a value that is a list of texts; an empty list for anything else."""
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else []
