"""The calculator while a model generates: what it asks for is computed, and the result becomes its next tokens."""

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
    """The tool in the tokens of a tokenizer."""

    token_ids: dict[str, int]
    """The ids of the special tokens by their names."""
    encode: Callable[[str], np.ndarray]
    """Text as ids, uint32 [tokens]."""
    decode: Callable[[Sequence[int]], str]

    def result(self, expression: Sequence[int]) -> list[int]:
        """Return the tokens that answer those of an expression; none if it is no arithmetic."""
        found = calculate(self.decode(expression))
        if found is None:
            return []
        return [self.token_ids[_RESULT], *self.encode(found).tolist(), self.token_ids[_RESULT_END]]


def find_calculator(renderer: Renderer, decode: Callable[[Sequence[int]], str]) -> Calculator | None:
    """Return the calculator of a style whose calls are special tokens; None for others, whose calls are text.

    Args:
        renderer: of the model's tokenizer.
        decode: the tokenizer's.
    """
    if _CALL not in renderer.token_ids:
        return None
    return Calculator(renderer.token_ids, renderer.encode, decode)


class Calls:
    """The calls of one row: takes each of its tokens, and has those that must come next."""

    def __init__(self, calculator: Calculator) -> None:
        """Begin outside of a call."""
        self.calculator = calculator
        self.forced: deque[int] = deque()
        """The tokens of a result that the row has still to take."""
        self._expression: list[int] | None = None
        self._special = frozenset(calculator.token_ids.values())

    def add(self, token: int) -> None:
        """Take the row's next token; behind the end of a call, its result is forced."""
        if token not in self._special:
            if self._expression is not None:
                self._expression.append(token)
            return
        if token == self.calculator.token_ids[_CALL_END] and self._expression is not None:
            self.forced.extend(self.calculator.result(self._expression))
        # Any other special token ends a call as well: what holds one is no expression.
        self._expression = [] if token == self.calculator.token_ids[_CALL] else None


def spoken(tokens: Sequence[int], token_ids: Mapping[str, int]) -> list[int]:
    """Return the tokens of a row that are its text: without calls, results and special tokens.

    Args:
        tokens: of the row, as it took them.
        token_ids: the ids of the special tokens by their names.
    """
    ends = {token_ids[begin]: token_ids[end] for begin, end in _PAIRS if begin in token_ids}
    special, text, end = frozenset(token_ids.values()), [], None
    for token in tokens:
        if token in special:
            end = None if token == end else ends.get(token, end)
        elif end is None:
            text.append(token)
    return text
