"""A step's loss and gradients: the sum of weights times losses over the targets of the whole step, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from oracles.oracle import build, relative_error, weights_of
from oracles.plain_decoder import PlainDecoder
from support.configs import tiny

pytestmark = pytest.mark.usefixtures("single_rank")

MICRO_BATCHES, SIZE, LENGTH = 2, 2, 13

# Targets of each of four sequences, which stand at their ends.
ONES = torch.tensor([1, 13, 4, 9])


def mask() -> torch.Tensor:
    """[4, S]: 1 at a target."""
    return (torch.arange(LENGTH) >= LENGTH - ONES[:, None]).float()


def advantages() -> torch.Tensor:
    """[4, S]: 0.7 or -0.4 for all targets of a sequence, and one target without any; they add up to nothing much."""
    weights = mask() * torch.tensor([0.7, -0.4, 0.7, 0.4])[:, None]
    weights = weights - mask() * (weights.sum() / mask().sum() - 0.003)
    weights[3, -1] = 0
    return weights


@pytest.mark.parametrize("weights", [mask, advantages])
def test_gradients_match_the_formula(weights: Callable[[], torch.Tensor]) -> None:
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.data.batch import Batch
    from efficientbench.training.events import Event, StepEnded
    from efficientbench.training.trainer import Trainer
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    config = tiny(
        "gqa_1.5B",
        *("model.init_std=0.2", "training.gradient_clip=0"),
        *(f"training.seq_len={LENGTH}", f"training.micro_batch_size={SIZE}"),
        f"training.global_batch_size={SIZE * MICRO_BATCHES}",
    )
    generator = torch.Generator().manual_seed(3)
    sequences = torch.randint(config.model.vocab_size, (SIZE * MICRO_BATCHES, LENGTH + 1), generator=generator)
    tokens, labels = sequences[:, :-1], sequences[:, 1:]
    factors, counted = weights(), int(ONES.sum())
    assert int(factors.sum()) == (counted if weights is mask else 0)  # the old divisor of advantages

    class Given:
        micro_batches = MICRO_BATCHES
        device = torch.device("cpu")

        def training_step(self, step: int) -> Iterator[Batch]:
            for first in range(0, len(sequences), SIZE):
                rows = slice(first, first + SIZE)
                count = int(ONES[rows].sum())
                yield Batch(tokens[rows], labels[rows], factors[rows], count, counted / MICRO_BATCHES)

    model = build(config)
    oracle = PlainDecoder(weights_of(model), config.model)
    losses = torch.nn.functional.cross_entropy(oracle(tokens).transpose(1, 2), labels, reduction="none")
    expected = (losses * factors.double()).sum() / counted
    expected.backward()
    events: list[Event] = []
    wrapped = wrap_data_parallel(model, config)
    optimizer = build_optimizer([wrapped], config)
    Trainer(config, 1, [wrapped], optimizer, Given(), [events.append]).train_step(1)  # type: ignore[arg-type]
    (ended,) = [event for event in events if isinstance(event, StepEnded)]
    assert (ended.tokens, ended.supervised_tokens) == (len(sequences) * LENGTH, counted)
    assert ended.loss == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in global_parameters(model).items():
        gradient = oracle.weights[name].grad
        assert gradient is not None
        assert relative_error(parameter.main_grad, gradient) < 1e-5, name
    norm = torch.stack([weight.grad.norm() for weight in oracle.weights.values() if weight.grad is not None]).norm()
    assert ended.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
