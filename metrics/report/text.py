"""Markdown that a record's own text cannot break."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table; its first `left` columns are words, the others figures."""
    lines = [_line(header), "|" + "|".join("---" if at < left else "---:" for at in range(len(header))) + "|"]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def escape(content: str) -> str:
    """The text in one line, without its meaning to Markdown or HTML."""
    flat = " ".join(content.split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|`*\[\]])", r"\\\1", flat)
