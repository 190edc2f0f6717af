"""Attention within documents: a packed sequence is computed as its documents are, each as a sequence of its own."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from oracles.oracle import build, relative_error
from support.configs import FINE, MODELS, tiny_model

from efficientbench.config.schema import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

END = 0
EXACT = 1e-5
RECOMPUTED = [(name, how) for name in ("gqa", "mla", "nsa") for how in ("selective", "full")]
QUICK = {(name, "none") for name in ("gqa", "mla", "nsa", "relative", "learnable_absolute")}
CASES = [*((name, "none") for name in MODELS), *RECOMPUTED]


def packed(config: RunConfig) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """Return two sequences of documents, their labels, and where documents begin and end.

    One sequence begins with a document of a single token; a document fills most of the other; the last ones are cut.
    """
    length, generator = config.training.seq_len, torch.Generator().manual_seed(3)
    sequence = torch.randint(1, config.model.vocab_size, (2, length + 1), generator=generator)
    bounds = [[0, 1, 3, length // 2 + 1, length - 2, length], [0, length - 5, length]]
    for row, ends in zip(sequence, bounds, strict=True):
        row[[end - 1 for end in ends[1:-1]]] = END
    return sequence[:, :-1], sequence[:, 1:], bounds


@pytest.mark.parametrize(
    ("name", "recompute"), [case if case in QUICK else pytest.param(*case, marks=pytest.mark.proof) for case in CASES]
)
def test_packed_documents_equal_separate_sequences(name: str, recompute: str) -> None:
    from efficientbench.model.documents import Documents, bounds_of, positions_of
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.update.optimizer import wrap_data_parallel

    more = ("model.moe.auxiliary_loss=0",) if name in ("moe", FINE) else ()
    config = tiny_model(name, "model.init_std=0.2", f"training.recompute={recompute}", *more)
    tokens, labels, bounds = packed(config)
    assert bounds_of(tokens, END) == bounds
    model = build(config)
    wrapped = wrap_data_parallel(model, config)

    def gradients() -> dict[str, torch.Tensor]:
        model.take_routing()
        found = {key: parameter.main_grad.clone() for key, parameter in global_parameters(model).items()}
        wrapped.zero_grad_buffer()
        return found

    documents = Documents(bounds, positions_of(bounds).t())
    loss = wrapped(tokens, labels, torch.ones(tokens.shape), documents=documents)
    loss.backward()
    together = gradients()
    expected_loss, logits = 0.0, torch.zeros(*tokens.shape, config.model.vocab_size)
    for row, ends in enumerate(bounds):
        for begin, end in pairwise(ends):
            part = slice(row, row + 1), slice(begin, end)
            alone = wrapped(tokens[part], labels[part], torch.ones(1, end - begin))
            alone.backward()
            expected_loss += alone.item()
            with torch.no_grad():
                logits[part] = model(tokens[part])
    apart = gradients()
    assert loss.item() == pytest.approx(expected_loss, rel=EXACT)
    for key, gradient in apart.items():
        assert relative_error(together[key], gradient) < EXACT, key
    with torch.no_grad():
        assert relative_error(model(tokens, documents=documents), logits) < EXACT
        # Else nothing would have been tested: without the ends, other numbers.
        assert relative_error(model(tokens), logits) > 1e-3
