"""Renders conversations as ids, with a mask of the supervised tokens.

Ids are rendered piece by piece, so that no text can become a special token. Adjacent texts with the same mask are
encoded together; a token ends where the mask changes, as it does when the assistant begins to speak.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.conversations import ASSISTANT, Message
from efficientbench.data_tools.chat.styles import CHAT_TOKENS, Piece, Style, find_style
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Rendered:
    """A rendered conversation of T tokens."""

    ids: np.ndarray
    """The tokens' ids, uint32 [T]."""
    mask: np.ndarray
    """The mask, uint8 [T]: 1 where the token is supervised."""


@dataclass(frozen=True)
class Renderer:
    """Renders conversations in a tokenizer's style; it can be pickled if `encode` can."""

    style: Style
    token_ids: dict[str, int]
    """The ids of the style's special tokens, by name."""
    encode: Callable[[str], np.ndarray]
    """Encodes text as ids, uint32 [tokens], without special tokens."""

    def conversation(self, messages: Sequence[Message]) -> Rendered:
        """Render a complete conversation."""
        return self._rendered(self.style.pieces(messages))

    def prompt(self, messages: Sequence[Message]) -> np.ndarray:
        """Return the ids, uint32 [T], after which the assistant answers; skip its answer if that is the last message.

        The ids of the same conversation with its answer begin with these.
        """
        before = messages[:-1] if messages[-1].role == ASSISTANT else messages
        return self._rendered(itertools.chain(self.style.pieces(before), self.style.opening)).ids

    def continued(self, messages: Sequence[Message]) -> np.ndarray:
        """Return the ids, uint32 [T], after which the assistant continues its message, which is the last one."""
        pieces = list(self.style.pieces(messages))
        ends = [number for number, piece in enumerate(pieces) if piece.is_token and piece.text == self.style.end]
        return self._rendered(pieces[: ends[-1]]).ids

    @property
    def end_id(self) -> int:
        """The id of the token with which the assistant ends its message."""
        return self.token_ids[self.style.end]

    def _rendered(self, pieces: Iterable[Piece]) -> Rendered:
        ids, masks = [], []
        for (is_token, supervised), group in itertools.groupby(pieces, lambda each: (each.is_token, each.supervised)):
            texts = [piece.text for piece in group]
            found = [self.token_ids[text] for text in texts] if is_token else self.encode("".join(texts))
            ids.append(np.asarray(found, np.uint32))
            masks.append(np.full(len(ids[-1]), supervised, np.uint8))
        return Rendered(np.concatenate(ids), np.concatenate(masks))


def make_renderer(tokenizer: TextTokenizer, name: str, encode: Callable[[str], np.ndarray] | None = None) -> Renderer:
    """Return the renderer of a tokenizer's style.

    Args:
        tokenizer: A tokenizer with the special tokens of a style.
        name: The tokenizer's name, for error messages.
        encode: A faster encoder that gives the same ids; None for the tokenizer's own.

    Raises:
        DataError: the tokenizer has no chat tokens.
    """
    special = tokenizer.special_tokens()
    style = find_style(special)
    if style is None:
        lacks = [token for token in CHAT_TOKENS if token not in special]
        raise DataError(
            f"the tokenizer {name} has no chat tokens: it lacks {', '.join(lacks[:3])}{', …' * (len(lacks) > 3)} as "
            "special tokens, and Qwen's <|im_start|>, <|im_end|> too. Train one with `efficientbench-data "
            "train-tokenizer --chat DATA --output FOLDER`, and the base model with it, or take a tokenizer that has "
            "them, such as Qwen/Qwen2.5-0.5B"
        )
    token_ids = {token: special[token] for token in style.tokens}
    return Renderer(style, token_ids, encode or tokenizer.encode)
