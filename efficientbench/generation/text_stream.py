"""Text of tokens that arrive one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""What a tokenizer's decoder writes for bytes that are no character."""


class TextStream:
    """Turns tokens into text that never ends within a character."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        """Take the tokenizer's `decode` and the tokens before the first one, whose text is not returned."""
        self.decode, self.tokens = decode, list(prompt)
        # Tokens are decoded with those before them, which may decide their text: a blank at its beginning, for one.
        self._context, self._returned = 0, len(self.tokens)

    def add(self, token: int) -> str:
        """Return the text that is complete with this token, and was not before."""
        self.tokens.append(token)
        return self._new(whole=False)

    def rest(self) -> str:
        """Return the text that `add` has held back, at the end of the tokens."""
        return self._new(whole=True)

    def _new(self, whole: bool) -> str:
        before = self.decode(self.tokens[self._context : self._returned])
        now = self.decode(self.tokens[self._context :])
        # The first bytes of a character, whose last ones are in tokens to come.
        if now.endswith(REPLACEMENT) and not whole:
            return ""
        self._context, self._returned = self._returned, len(self.tokens)
        return now[len(before) :]
