"""Attention within documents: a packed sequence is computed as its documents are, each as a sequence of its own."""

from __future__ import annotations

import pytest
from support.configs import FINE, MODELS, chosen, ends_with_documents, tiny_model
from support.packed_documents import packed_beside_separate

from efficientbench.architecture.registry import ATTENTION

pytestmark = pytest.mark.usefixtures("single_rank")

EXACT = 1e-5
ENDED = chosen(MODELS, ends_with_documents)
RECOMPUTED = [
    *((kind, "full") for kind in ATTENTION if kind in ENDED),
    *((kind, "selective") for kind, each in ATTENTION.items() if kind in ENDED and each.selective_recomputation),
]
QUICK = {(name, "none") for name in (*ATTENTION, "relative", "learnable_absolute")}
CASES = [*((name, "none") for name in ENDED), *RECOMPUTED]


@pytest.mark.parametrize(
    ("name", "recompute"), [case if case in QUICK else pytest.param(*case, marks=pytest.mark.proof) for case in CASES]
)
def test_packed_documents_equal_separate_sequences(name: str, recompute: str) -> None:
    more = ("model.moe.auxiliary_loss=0",) if name in ("moe", FINE) else ()
    found = packed_beside_separate(tiny_model(name, "model.init_std=0.1", f"training.recompute={recompute}", *more))
    assert max(found.logits, found.loss) < EXACT
    for key, error in found.gradients.items():
        assert error < EXACT, key
    # Else nothing would have been tested: without the ends, other numbers.
    assert found.without_ends > 1e-3
