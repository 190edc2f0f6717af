"""Compares the plan of tokenizing, everything that decides its result, with the plan that an earlier call recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from efficientbench.basics.errors import DataError
from efficientbench.basics.foreign import read_whole

_INPUTS = TypeAdapter(list[tuple[str, str]])


def read_plan(path: Path, remedy: str) -> dict[str, Any]:
    """Read the plan that an earlier call recorded.

    Raises:
        DataError: the plan is damaged; the message ends with the remedy.
    """
    try:
        plan = TypeAdapter(dict[str, Any]).validate_json(read_whole(path))
        _INPUTS.validate_python(plan.get("inputs"))
    except (OSError, ValidationError):
        raise DataError(f"{path} is damaged: {remedy}") from None
    return plan


def compare_plans(made: Mapping[str, Any], wanted: Mapping[str, Any], prefix: Path, remedy: str) -> None:
    """Raise a DataError if `made`, the recorded plan of a pair, differs from the plan `wanted` now."""
    now = dict(wanted["inputs"])
    for path, digest in made["inputs"]:
        if digest != now.get(path, digest):
            raise DataError(f"{path} changed since {prefix} was begun: put the old file back, or {remedy}")
    for key in made:
        if made[key] != wanted.get(key):
            raise DataError(f"{prefix} was begun with other {key}: take the same, or {remedy}")
