"""The checksum that a JSON file carries of its own content: a record's, an evaluation's, a generation's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY = "sha256"


def content_sha256(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a JSON object without its own checksum.

    It is that of its canonical text: keys sorted, no spaces, other characters than ASCII escaped, and numbers as Python
    writes them. So it stays when the file is indented otherwise.

    Raises:
        ValueError: it is nested too deeply.
    """
    rest = {key: value for key, value in content.items() if key != KEY}
    try:
        return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with its checksum, in place of one that it has."""
    return {**content, KEY: content_sha256(content)}


def check_checksum(content: Mapping[str, Any]) -> None:
    """Check the checksum of an object that was read; one that has none is of an earlier version, or of another tool.

    Raises:
        ValueError: it does not fit the content.
    """
    if content.get(KEY) is not None and content[KEY] != content_sha256(content):
        raise ValueError(f"damaged, its {KEY} is not that of its content; remove the key if you changed it yourself")
