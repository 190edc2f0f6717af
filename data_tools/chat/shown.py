"""A conversation as text for people, with what is to be learned set apart from the rest."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from efficientbench.data_tools.tokenizer import TextTokenizer

OPEN, CLOSE = "⟦", "⟧"
"""Around what is to be learned, where there are no colours."""

_GREEN, _GREY, _PLAIN = "\x1b[32m", "\x1b[90m", "\x1b[0m"


def show_conversation(ids: np.ndarray, mask: np.ndarray, tokenizer: TextTokenizer, coloured: bool) -> str:
    """Return a conversation's text with its special tokens: what is to be learned green, the rest grey.

    Args:
        ids: [T]
        mask: [T], 1 where the token is to be learned.
        tokenizer: It made the ids.
        coloured: Whether the output has colours; without them, brackets stand around what is to be learned.
    """
    shown = []
    for supervised, group in groupby(zip(ids.tolist(), mask.tolist(), strict=True), lambda each: bool(each[1])):
        text = tokenizer.backend.decode([token for token, _ in group], skip_special_tokens=False)
        if coloured:
            shown.append(f"{_GREEN if supervised else _GREY}{_safe(text)}{_PLAIN}")
        else:
            shown.append(f"{OPEN}{_safe(text)}{CLOSE}" if supervised else _safe(text))
    return "".join(shown)


def _safe(text: str) -> str:
    """Return text without characters that would change how a terminal shows it."""
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)
