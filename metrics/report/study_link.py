"""Where the answer of a study lies that runs belong to: reports and comparisons lead to it."""

from __future__ import annotations

from pathlib import Path

STUDY_JSON, STUDY_HTML = "study.json", "study.html"
_LEVELS = 3
"""Folders above that of a run's repeat in which a study may lie."""


def study_of(*folders: Path) -> Path | None:
    """Return the page of the study whose runs all of these folders are or hold; None where there is none."""
    above = [[folder, *folder.parents[:_LEVELS]] for folder in map(Path.absolute, folders)]
    for folder in above[0]:
        if all(folder in each for each in above) and (folder / STUDY_JSON).is_file():
            return folder / STUDY_HTML
    return None
