"""The calculator that an assistant may call: it evaluates an arithmetic expression, and never runs code."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable

MAX_CHARACTERS = 100
"""The longest expression, in characters."""

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_SIGNS: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> str | None:
    """Return the value of an expression of numbers, + - * /, signs and brackets, as `written`; None for anything else.

    Commas are removed first. Division by zero, and values that are not finite, give None too.
    """
    if len(expression) > MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of expressions that look like mistakes
            tree = ast.parse(expression.replace(",", "").strip(), mode="eval")
        value = _value(tree.body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return written(value) if math.isfinite(value) else None


def written(value: float) -> str:
    """Return a number with at most three decimals, without trailing zeros, and never with an exponent."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _value(node: ast.expr) -> float:
    """Return the value of a syntax tree. Raises ValueError if it holds anything but arithmetic."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return float(_SIGNS[type(node.op)](_value(node.operand)))
    raise ValueError("no arithmetic")
