"""The files of a study's answer: `study.json`, whose schema is in docs/, `study.md` and `study.html`."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from efficientbench.metrics.files import write_whole
from efficientbench.metrics.report.study_link import STUDY_HTML, STUDY_JSON
from efficientbench.studies.answer import Answer
from efficientbench.studies.html import page
from efficientbench.studies.page import markdown

STUDY_MD = "study.md"
ANSWER = TypeAdapter(Answer)
"""Reads and writes `study.json`."""


def write_answer(answer: Answer, folder: Path) -> list[Path]:
    """Write the files of an answer into a study's folder, and return them; none before a run has made the folder.

    Raises MetricsError: a file cannot be written.
    """
    if not folder.is_dir():
        return []
    text = ANSWER.dump_json(answer, indent=1).decode() + "\n"
    texts = {STUDY_JSON: text, STUDY_MD: markdown(answer), STUDY_HTML: page(answer)}
    for name, content in texts.items():
        write_whole(folder / name, content)
    return [folder / name for name in texts]
