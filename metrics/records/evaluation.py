"""Reads and writes the summary of an evaluated task, `evaluation/<task>.json` in a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficientbench.basics.checksum import KEY, check_checksum, with_checksum
from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_json, plain_texts, read_whole
from efficientbench.metrics.files import write_whole

EVALUATION_FORMAT = 2
"""Edition of the summary's format; 1 had no checksum."""


def write_evaluation(content: Mapping[str, Any], path: Path) -> None:
    """Write a summary with its format and checksum. Raises MetricsError where the file cannot be written."""
    whole = with_checksum({"format": EVALUATION_FORMAT, **content})
    write_whole(path, json.dumps(whole, indent=2, allow_nan=False) + "\n")


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read a summary; its texts are safe to print on a terminal.

    Raises:
        MetricsError: the file cannot be read, is no JSON object, or fails its checksum.
    """
    try:
        content = parse_json(read_whole(path))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if content.get("format") == EVALUATION_FORMAT and KEY not in content:
            raise ValueError(f"damaged, it lacks its {KEY}")
        check_checksum(content)
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise MetricsError(f"{path}: cannot be read ({error})") from None
    return plain_texts(content)
