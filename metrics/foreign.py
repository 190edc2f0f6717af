"""Reads files that anybody may have written: no device that never ends, no depth or size that ends the program."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 28
"""Of a file that is read as a whole, unless the caller knows better."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What makes a terminal do something, or show text in another order; halves of characters that no file can hold."""


def read_whole(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, has more than `most_bytes`, or is a device, a pipe or a folder, which may never end.
    """
    # Without O_NONBLOCK the opening of a pipe would wait for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if found.st_size > most_bytes:
            reason = f"it has {found.st_size:,} bytes, and {most_bytes:,} are the most that is read"
            raise OSError(errno.EFBIG, reason, str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON, or nested deeper than Python follows.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def plain_text(text: str) -> str:
    """Return a text without what a terminal would obey; line breaks and tabs stay."""
    return _UNPRINTABLE.sub("\ufffd", text)


def plain_texts(value: Any) -> Any:
    """Return a value of JSON with `plain_text` of every text in it; what is no list, dict or text stays as it is."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        # Most lists are long ones of numbers.
        return value if _HOLDS_TEXT.isdisjoint(map(type, value)) else [plain_texts(each) for each in value]
    if isinstance(value, dict):
        return {plain_texts(key): plain_texts(each) for key, each in value.items()}
    return value


_HOLDS_TEXT = {str, list, dict}
