"""SFT on packed conversations: one loss curve in every layout, and targets counted over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.configs import tiny
from support.conversation_pairs import VOCABULARY, write_conversations
from support.ranks import Ranks
from support.tiny_training import Observed, tiny_training

from efficientbench.config.schema import RunConfig

STEPS = 3
LAYOUTS = {
    "DP 2": (2, ["parallel.dp=2"]),
    "TP 2, SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "CP 2": (2, ["parallel.cp=2"]),
    "micro-batches of one": (1, ["training.micro_batch_size=1"]),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("pair"), 200)


def config_of(pair: Path, *overrides: str) -> RunConfig:
    words = ["training.objective=sft", "training.seq_len=48", f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]"]
    return tiny("gqa_1.5B", *words, f"data.path={pair}", f"data.cache={pair.parent}", *overrides)


def trained(config: RunConfig, prefix: Path) -> tuple[Observed, list[tuple[int, int]]]:
    """Losses and norms of a few steps and of a validation; tokens and supervised tokens of each step."""
    from efficientbench.training.events import Event, StepEnded

    observed, counted = Observed(), list[tuple[int, int]]()

    def count(event: Event) -> None:
        if isinstance(event, StepEnded):
            counted.append((event.tokens, event.supervised_tokens))

    with tiny_training(config, prefix, STEPS, observed.listen, count) as trainer:
        for step in range(1, STEPS + 1):
            trainer.train_step(step)
        trainer.validate(STEPS)
    return observed, counted


@pytest.fixture(scope="module")
def single(ranks: Callable[[int], Ranks], pair: Path) -> tuple[Observed, list[tuple[int, int]]]:
    return ranks(1).call(trained, config_of(pair), pair)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_loss_curve_in_every_layout(
    layout: str, ranks: Callable[[int], Ranks], pair: Path, single: tuple[Observed, list[tuple[int, int]]]
) -> None:
    size, overrides = LAYOUTS[layout]
    expected, counts = single
    for observed, counted in ranks(size).call(trained, config_of(pair, *overrides), pair):
        assert counted == counts
        assert observed.losses == pytest.approx(expected.losses, rel=1e-5)
        assert observed.norms == pytest.approx(expected.norms, rel=1e-5)
        assert observed.validation_losses == pytest.approx(expected.validation_losses, rel=1e-5)


def test_computed_and_supervised_tokens(pair: Path, single: tuple[Observed, list[tuple[int, int]]]) -> None:
    import numpy as np

    from efficientbench.data_tools.splitting import SPLITS, split_documents
    from efficientbench.training.conversations import Conversations, PackedConversations

    training = config_of(pair).training
    split = split_documents([pair], (9, 1, 0), VOCABULARY, pair.parent / SPLITS)[0]
    batch = training.global_batch_size
    samples = PackedConversations(Conversations(pair, 48), split.training, STEPS * batch, training.seed, 0)
    masks = [float(samples[number]["loss_mask"].sum()) for number in range(STEPS * batch)]
    assert single[1] == [(batch * 48, int(each)) for each in np.add.reduceat(masks, range(0, STEPS * batch, batch))]
