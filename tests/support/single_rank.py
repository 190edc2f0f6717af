"""The comparison of a layout with a single rank."""

from __future__ import annotations

import pytest
from support.cells import Outcome, whole_gradients


def assert_equals_single_rank(outcomes: list[Outcome], expected: Outcome, vocab_size: int, relative: float) -> None:
    """Every rank has the losses, norms and routing of `expected`, a single rank's; together they have its gradients."""
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected.losses, rel=relative)
        assert outcome.norms == pytest.approx(expected.norms, rel=relative)
        assert outcome.validation_losses == pytest.approx(expected.validation_losses, rel=relative)
        assert outcome.auxiliary_losses == pytest.approx(expected.auxiliary_losses, rel=relative)
        assert outcome.tokens_per_expert == expected.tokens_per_expert
    gradients, oracle = whole_gradients(outcomes, vocab_size), whole_gradients([expected], vocab_size)
    assert gradients.keys() == oracle.keys()
    for key, gradient in gradients.items():
        # An expert that no token reaches has a gradient of zero.
        error = (gradient - oracle[key]).abs().max() / oracle[key].abs().max().clamp_min(1e-30)
        assert error < relative, f"{key}: relative error {error:.1e}"
