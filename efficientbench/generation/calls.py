"""The calculator during generation: compute the expression that the model writes, and force the result's tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from efficientbench.data_tools.chat.calculator import calculate
from efficientbench.data_tools.chat.render import Renderer

_CALL, _CALL_END, _RESULT, _RESULT_END = "<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>"
_PAIRS = ((_CALL, _CALL_END), (_RESULT, _RESULT_END))


@dataclass(frozen=True)
class Calculator:
    """The calculator in a tokenizer's tokens."""

    token_ids: dict[str, int]
    """The ids of the special tokens, by name."""
    encode: Callable[[str], np.ndarray]
    """Text as ids, uint32 [tokens]."""
    decode: Callable[[Sequence[int]], str]

    def result(self, expression: Sequence[int]) -> list[int]:
        """Return the tokens of an expression's result; none if the expression is not arithmetic."""
        found = calculate(self.decode(expression))
        if found is None:
            return []
        return [self.token_ids[_RESULT], *self.encode(found).tolist(), self.token_ids[_RESULT_END]]


def find_calculator(renderer: Renderer, decode: Callable[[Sequence[int]], str]) -> Calculator | None:
    """Return the calculator of a style whose calls are special tokens; None for a style whose calls are text.

    Args:
        renderer: the renderer of the model's tokenizer.
        decode: the tokenizer's `decode`.
    """
    if _CALL not in renderer.token_ids:
        return None
    return Calculator(renderer.token_ids, renderer.encode, decode)


class Calls:
    """The calculator calls of one row: follows the row's tokens, and holds the result tokens that must come next."""

    def __init__(self, calculator: Calculator) -> None:
        """Begin outside a call."""
        self.calculator = calculator
        self.forced: deque[int] = deque()
        """The tokens of a result that the row must still take."""
        self._expression: list[int] | None = None
        self._special = frozenset(calculator.token_ids.values())

    def add(self, token: int) -> None:
        """Take the row's next token; after the end of a call, force the call's result."""
        if token not in self._special:
            if self._expression is not None:
                self._expression.append(token)
            return
        if token == self.calculator.token_ids[_CALL_END] and self._expression is not None:
            self.forced.extend(self.calculator.result(self._expression))
        # Any other special token ends the call, too: an expression contains none.
        self._expression = [] if token == self.calculator.token_ids[_CALL] else None


def spoken(tokens: Sequence[int], token_ids: Mapping[str, int]) -> list[int]:
    """Return the text tokens of a row, without calls, results and special tokens.

    Args:
        tokens: the row's tokens, in order.
        token_ids: the ids of the special tokens, by name.
    """
    ends = {token_ids[begin]: token_ids[end] for begin, end in _PAIRS if begin in token_ids}
    special, text, end = frozenset(token_ids.values()), [], None
    for token in tokens:
        if token in special:
            end = None if token == end else ends.get(token, end)
        elif end is None:
            text.append(token)
    return text
