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
    """Return a text's Chinese translation, or the text itself where there is none, or only one of a part.

    A placeholder in a key of the table matches a part of the text, which fills a `{}` of the Chinese, in the same order
    or by number, translated in turn. A text of several lines is translated line by line, one of several parts (`; `)
    part by part.
    """
    return _translated(text) or text


def _translated(text: str) -> str | None:
    """Return the Chinese of a text; None where English sentences would be left in it."""
    exact, patterns = _table()
    if text in exact:
        return exact[text]
    if "\n" in text or text[:1] == " ":
        chinese = re.sub(r"[^ \n][^\n]*", lambda line: in_chinese(line[0]), text)
        return None if chinese == text else chinese
    for pattern, kinds, chinese in patterns:
        if found := pattern.fullmatch(text):
            filled = [_part(part, kind) for part, kind in zip(found.groups(), kinds, strict=True)]
            if None not in filled:
                return chinese.format(*filled)
    key, _, told = text.partition(": ")
    if _KEY.fullmatch(key) and (reason := _translated(told)):
        return f"{key}：{reason}"
    parts = _BETWEEN.split(text)
    known = [_translated(part) or _part(part) for part in parts] if len(parts) > 1 else parts
    return None if None in known or known == parts else "；".join(each or "" for each in known)


def _part(text: str, kind: str = "{}") -> str | None:
    """Return a part of a text in Chinese, or as it is where it is a name or value; None if it is English sentences.

    A single word stays as it is, for it may be what a reader has to type, like a key.
    """
    if " " not in text:
        return text
    return _translated(text) or (None if kind != ANY and _SENTENCE.search(_QUOTED.sub("", text)) else text)


ANY = "{*}"
PLACEHOLDERS = {"{}": "(.*?)", ANY: "(.*?)", "{n}": r"((?:about |at least )?\d(?:\S*[^\s.,:;])?)"}
"""Placeholder in a key → what it matches: a name, a value or a text that the table has; what a user or another program
wrote, which stays as it is where the table does not have it; a number."""

_QUOTED = re.compile(r"'[^']*'|`[^`]*`|\(speed only\)")
"""What is no sentence: words in quotes, and the mark behind a run's name."""

_KEY = re.compile(r"[a-z_]+(?:\.\w+)+")
"""A key of a configuration, like `model.pattern`, which begins many mistakes."""

_BETWEEN = re.compile(r"; (?![^()]*\))")
"""What stands between parts of a text; within brackets it belongs to a part."""

_SENTENCE = re.compile(r"(?<![\w./=-])(?!and |or |efficientbench )[a-z]+ (?!and\b|or\b)[a-z]+(?![\w/=-]|\.\w)")
"""Two words, one after the other, as no list of names has them."""


@cache
def _table() -> tuple[dict[str, str], list[tuple[re.Pattern[str], list[str], str]]]:
    """Return the translations of texts without placeholders, and of patterns for texts with placeholders."""
    parts = (parse_own_yaml(table.read_text(encoding="utf-8")).values() for table in TABLES)
    texts = {english: chinese for part in chain.from_iterable(parts) for english, chinese in part.items()}
    placeholder = re.compile(f"({'|'.join(map(re.escape, PLACEHOLDERS))})")
    exact = {english: chinese for english, chinese in texts.items() if not placeholder.search(english)}
    # What begins with words first, else a pattern that begins with a placeholder would take those words, as of
    # `error: {}`, into it; then the longest: of two patterns that match, it is the more specific.
    keys = sorted(texts.keys() - exact.keys(), key=lambda key: (key[0] != "{", len(key)), reverse=True)
    patterns = []
    for key in keys:
        pattern = "".join(PLACEHOLDERS.get(each) or re.escape(each) for each in placeholder.split(key))
        patterns.append((re.compile(pattern, re.DOTALL), placeholder.findall(key), texts[key]))
    return exact, patterns
