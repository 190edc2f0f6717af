"""Documents packed into sequences, beside the same documents as sequences of their own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from oracles.oracle import build, relative_error

from efficientbench.config.schema import RunConfig

END = 0


@dataclass(frozen=True)
class Packed:
    """Relative differences of packed documents from separate ones."""

    logits: float
    loss: float
    gradients: dict[str, float]
    without_ends: float
    """The logits' difference where attention does not end with documents."""


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


def packed_beside_separate(config: RunConfig) -> Packed:
    """Forward and backward pass of packed documents, and of each of them."""
    from efficientbench.model.documents import Documents, bounds_of, positions_of
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.model.moe import take_routing
    from efficientbench.training.update.optimizer import wrap_data_parallel

    tokens, labels, bounds = packed(config)
    assert bounds_of(tokens, END) == bounds
    model = build(config)
    wrapped = wrap_data_parallel(model, config)

    def gradients() -> dict[str, torch.Tensor]:
        take_routing(model)
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
    with torch.no_grad():
        within, without = (relative_error(model(tokens, documents=each), logits) for each in (documents, None))
    errors = {key: relative_error(together[key], gradient) for key, gradient in apart.items()}
    return Packed(within, abs(loss.item() / expected_loss - 1), errors, without)
