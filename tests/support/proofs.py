"""Which cases of a parametrized test are proofs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def proofs_but(quick: Collection[object], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of one parameter; those beside `quick` are proofs."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.proof) for case in cases]


def rest_as_proofs(quick: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases, each a tuple of parameters; those behind the first `quick` are proofs."""
    return [pytest.param(*case, marks=pytest.mark.proof if at >= quick else ()) for at, case in enumerate(cases)]
