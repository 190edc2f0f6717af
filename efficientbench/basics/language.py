"""English, or Chinese where the locale is Chinese: of help, and of what `doctor` prints.

Texts stand in the code in English. chinese.yaml has their Chinese; a text that it lacks stays English.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("chinese.yaml")


def is_chinese(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the locale of messages is Chinese: the first that is set of LC_ALL, LC_MESSAGES and LANG."""
    found = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return found.lower().startswith("zh")


def in_users_language(text: str) -> str:
    """Return a message in the user's language."""
    return in_chinese(text) if is_chinese() else text


def in_chinese(text: str) -> str:
    """Return the Chinese of a text; the text itself where there is none.

    A key of the table with `{}` stands for every text with anything in its place, which the Chinese has in its own
    `{}`, in the same order, or by number. A text of several parts (`; `) is known by its parts.
    """
    exact, patterns = _table()
    if text in exact:
        return exact[text]
    for pattern, chinese in patterns:
        if found := pattern.fullmatch(text):
            return chinese.format(*map(in_chinese, found.groups()))
    parts = text.split("; ")
    known = [in_chinese(part) for part in parts] if len(parts) > 1 else parts
    return "；".join(known) if known != parts else text


@cache
def _table() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """Return the texts without and with placeholders."""
    import yaml

    content = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    texts = {**content["help"], **content["messages"]}
    exact = {english: chinese for english, chinese in texts.items() if "{}" not in english}
    # The longest first: of two that fit, it says more.
    keys = sorted(texts.keys() - exact.keys(), key=len, reverse=True)
    patterns = [("(.*?)".join(map(re.escape, key.split("{}"))), texts[key]) for key in keys]
    return exact, [(re.compile(pattern, re.DOTALL), chinese) for pattern, chinese in patterns]
