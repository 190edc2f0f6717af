"""The checksum of its own content that the JSON file of a record, an evaluation or a generation carries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY = "sha256"


def content_sha256(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a JSON object without its own checksum.

    The canonical text is hashed: sorted keys, no spaces, non-ASCII characters escaped, numbers as Python writes them.
    The file's indentation therefore does not change the checksum.

    Raises:
        ValueError: the object is nested too deeply.
    """
    rest = {key: value for key, value in content.items() if key != KEY}
    try:
        return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with its checksum, which replaces an earlier one."""
    return {**content, KEY: content_sha256(content)}


def check_checksum(content: Mapping[str, Any]) -> None:
    """Check the checksum of an object that was read; accept none, as earlier versions and other tools write.

    Raises:
        ValueError: the checksum does not match the content.
    """
    if content.get(KEY) is not None and content[KEY] != content_sha256(content):
        raise ValueError(f"damaged, its {KEY} is not that of its content; remove the key if you changed it yourself")
