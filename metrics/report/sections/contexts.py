"""Reads the long-context results of `efficientbench evaluate`: hidden numbers by length and depth, loss by position."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.records.evaluation import read_evaluation
from efficientbench.metrics.records.stored import current_files, read_each

HIDDEN = ("passkey", "needle")
BY_POSITION = "position_loss"

Tokens = Annotated[int, Field(ge=1, le=1 << 53)]
"""A number of tokens or items that a float holds exactly."""


class Cell(BaseModel):
    """The items of one length and depth."""

    model_config = ConfigDict(allow_inf_nan=False)
    length: Tokens
    depth: float = Field(ge=0, le=1)
    """Share of the text before the hidden number."""
    items: Tokens
    right: int = Field(ge=0, le=1 << 53)


class Range(BaseModel):
    """The positions from `first` to before `end`."""

    model_config = ConfigDict(allow_inf_nan=False)
    first: Tokens
    end: int = Field(ge=2, le=1 << 53)
    loss: float = Field(ge=0, le=1e6)
    """Mean loss, nats per token."""


class _Parts(BaseModel):
    trained_tokens: Tokens
    grid: list[Cell] = []
    ranges: list[Range] = []


class _Summary(BaseModel):
    step: int
    parts: _Parts


@dataclass(frozen=True)
class Context:
    """The result of one long-context task of one run."""

    run: str
    """The run's folder, relative to the reported folder."""
    task: str
    step: int
    trained_tokens: int
    """Sequence length of the training."""
    grid: tuple[Cell, ...]
    ranges: tuple[Range, ...]


def load_contexts(folder: Path) -> tuple[list[Context], list[str]]:
    """Return the results below a folder by task and run, and a message for each file that cannot be read."""
    found: list[Context] = []
    damaged: list[str] = []
    for task in (*HIDDEN, BY_POSITION):
        paths = [path for path in current_files(folder, f"{task}.json") if path.parent.name == "evaluation"]
        contexts, unread = read_each(paths, lambda path: _read(path, folder))
        found += contexts
        damaged += unread
    return found, damaged


def _read(path: Path, folder: Path) -> Context:
    try:
        summary = _Summary.model_validate(read_evaluation(path))
    except ValidationError as error:
        raise MetricsError(f"{path}: cannot be read ({error.errors()[0]['msg']})") from None
    run, parts = path.parent.parent, summary.parts
    name = folder.name if run == folder else plain_text(str(run.relative_to(folder)))
    return Context(name, path.stem, summary.step, parts.trained_tokens, tuple(parts.grid), tuple(parts.ranges))
