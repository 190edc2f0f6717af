"""The language of help pages, checks, mistakes and what commands say: Chinese in a Chinese locale.

The code has the English texts, and chinese*.yaml their translations. A text without a translation stays English.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path

from efficientbench.basics.foreign import parse_own_yaml

TABLE = Path(__file__).with_name("chinese.yaml")
TABLES = (TABLE, *sorted(TABLE.parent.glob("chinese_*.yaml")))
"""Help and what commands say, and then the mistakes of other rooms."""


def is_chinese(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the locale of messages is Chinese: the first that is set of LC_ALL, LC_MESSAGES and LANG."""
    found = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return found.lower().startswith("zh")


def in_users_language(text: str) -> str:
    """Return a message in the user's language."""
    return in_chinese(text) if is_chinese() else text


def in_chinese(text: str) -> str:
    """Return a text's Chinese translation, or the text itself where there is none.

    A `{}` in a key of the table matches any text, whose translation fills the `{}` of the Chinese, in the same order or
    by number. A text of several lines is translated line by line, one of several parts (`; `) part by part.
    """
    exact, patterns = _table()
    if text in exact:
        return exact[text]
    if "\n" in text or text[:1] == " ":
        return re.sub(r"[^ \n][^\n]*", lambda line: in_chinese(line[0]), text)
    for pattern, chinese in patterns:
        if found := pattern.fullmatch(text):
            return chinese.format(*map(in_chinese, found.groups()))
    parts = text.split("; ")
    known = [in_chinese(part) for part in parts] if len(parts) > 1 else parts
    return "；".join(known) if known != parts else text


@cache
def _table() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """Return the translations of texts without placeholders, and of patterns for texts with placeholders."""
    parts = (parse_own_yaml(table.read_text(encoding="utf-8")).values() for table in TABLES)
    texts = {english: chinese for part in chain.from_iterable(parts) for english, chinese in part.items()}
    exact = {english: chinese for english, chinese in texts.items() if "{}" not in english}
    # `error: {}` first, else a pattern that begins with a placeholder would take the word into it; then the longest: of
    # two patterns that match, it is the more specific.
    starts = re.compile(r"[a-z]+: {}")
    keys = sorted(texts.keys() - exact.keys(), key=lambda key: (bool(starts.fullmatch(key)), len(key)), reverse=True)
    patterns = [("(.*?)".join(map(re.escape, key.split("{}"))), texts[key]) for key in keys]
    return exact, [(re.compile(pattern, re.DOTALL), chinese) for pattern, chinese in patterns]
