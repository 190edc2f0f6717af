"""SFT on packed conversations: one loss curve of every variant in every layout, and targets counted over all ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support import checkpoints
from support.chat_tokenizers import byte_ids
from support.configs import tiny
from support.conversation_pairs import VOCABULARY, write_conversations, write_rows
from support.ranks import Ranks
from support.tiny_training import Observed, tiny_training

from efficientbench.config.schema import RunConfig
from efficientbench.training.checkpoints.manifest import checkpoint_folder

STEPS = 3
LAYOUTS = {
    "DP 2": (2, ["parallel.dp=2"]),
    "TP 2": (2, ["parallel.tp=2"]),
    "TP 2, SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "CP 2": (2, ["parallel.cp=2"]),
    "EP 2": (2, ["parallel.ep=2", "parallel.dp=2"]),
    "TP 2 x DP 2": (4, ["parallel.tp=2", "parallel.dp=2"]),
    "TP 2 x PP 2": (4, ["parallel.tp=2", "parallel.pp=2"]),
    "PP 2 x DP 2": (4, ["parallel.pp=2", "parallel.dp=2"]),
    "micro-batches of one": (1, ["training.micro_batch_size=1"]),
}
QUICK = [("gqa_1.5B", layout) for layout in ("DP 2", "TP 2, SP", "PP 2", "CP 2", "micro-batches of one")]
VARIANTS = ("nsa_1.5B", "mla_1.5B", "moe_1.5Bx8", "absolute_1.5B")
PRODUCTS = ("TP 2 x DP 2", "TP 2 x PP 2", "PP 2 x DP 2")
CELLS = [
    *QUICK,
    *(("gqa_1.5B", layout) for layout in PRODUCTS),
    *((name, layout) for name in VARIANTS for layout in ("PP 2", "DP 2")),
    # Experts under tensor parallelism need SP.
    *((name, "TP 2, SP" if name.startswith("moe") else "TP 2") for name in VARIANTS),
    *zip(VARIANTS, ("TP 2 x PP 2", "TP 2 x DP 2", "PP 2 x DP 2", "TP 2 x PP 2"), strict=True),
    ("moe_1.5Bx8", "EP 2"),
]
Curve = tuple[Observed, list[tuple[int, int]]]
"""What a rank observed; computed and supervised tokens of each step."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("pair"), 200)


def config_of(pair: Path, *overrides: str, name: str = "gqa_1.5B") -> RunConfig:
    words = ["training.objective=sft", "training.seq_len=48", f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]"]
    return tiny(name, *words, f"data.path={pair}", f"data.cache={pair.parent}", *overrides)


def trained(config: RunConfig, prefix: Path, device_name: str = "cpu") -> Curve:
    """Losses and norms of a few steps and of a validation; tokens and supervised tokens of each step."""
    from efficientbench.training.events import Event, StepEnded

    observed, counted = Observed(), list[tuple[int, int]]()

    def count(event: Event) -> None:
        if isinstance(event, StepEnded):
            counted.append((event.tokens, event.supervised_tokens))

    with tiny_training(config, prefix, STEPS, observed.listen, count, device_name=device_name) as trainer:
        for step in range(1, STEPS + 1):
            trainer.train_step(step)
        trainer.validate(STEPS)
    return observed, counted


@pytest.fixture(scope="module")
def alone(ranks: Callable[..., Ranks], pair: Path) -> Callable[[str], Curve]:
    """`alone(name)`: what one rank on the CPU observes of a run, trained once."""
    curves: dict[str, Curve] = {}

    def curve(name: str) -> Curve:
        if name not in curves:
            curves[name] = ranks(1).call(trained, config_of(pair, name=name), pair)[0]
        return curves[name]

    return curve


def assert_same(found: Curve, expected: Curve) -> None:
    (observed, counted), (wanted, counts) = found, expected
    assert counted == counts
    assert observed.losses == pytest.approx(wanted.losses, rel=1e-5)
    assert observed.norms == pytest.approx(wanted.norms, rel=1e-5)
    assert observed.validation_losses == pytest.approx(wanted.validation_losses, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "layout"), [each if each in QUICK else pytest.param(*each, marks=pytest.mark.proof) for each in CELLS]
)
def test_every_layout_has_the_same_loss_curve(
    name: str, layout: str, ranks: Callable[..., Ranks], pair: Path, alone: Callable[[str], Curve]
) -> None:
    size, overrides = LAYOUTS[layout]
    for found in ranks(size).call(trained, config_of(pair, *overrides, name=name), pair):
        assert_same(found, alone(name))


@pytest.mark.proof
@pytest.mark.parametrize("name", ["gqa_1.5B", *VARIANTS])
def test_the_simulated_npu_has_the_losses_of_the_cpu(
    name: str, ranks: Callable[..., Ranks], pair: Path, alone: Callable[[str], Curve]
) -> None:
    for found in ranks(2, "npu").call(trained, config_of(pair, "parallel.dp=2", name=name), pair, "npu:0"):
        assert_same(found, alone(name))


@pytest.mark.proof
@pytest.mark.parametrize("name", VARIANTS)
def test_sft_resumes_bit_for_bit(name: str, ranks: Callable[..., Ranks], pair: Path, tmp_path: Path) -> None:
    config = config_of(pair, "parallel.dp=2", "checkpoint.interval=2", "checkpoint.keep=3", name=name)
    whole = ranks(2).call(checkpoints.train, config, pair, 4, tmp_path / "whole")
    saved = checkpoint_folder(tmp_path / "whole", 2)
    for before, after in zip(
        whole, ranks(2).call(checkpoints.train, config, pair, 4, tmp_path / "resumed", saved), strict=True
    ):
        assert after.began_after == 2
        assert after.losses == before.losses[2:]
        assert after.norms == before.norms[2:]
        assert after.validation_losses == before.validation_losses


RANDOM_LETTERS = "abcd"


def prompts_before_and_after(config: RunConfig, prefix: Path, steps: int) -> tuple[float, float]:
    """Mean loss of the letters of held-out prompts, in nats, under the initial and under the trained weights."""
    import torch

    from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments

    letters = torch.tensor(byte_ids(RANDOM_LETTERS))
    documents = [torch.from_numpy(IndexedDocuments(prefix)[number].astype("int64")) for number in range(20)]
    means = []
    with tiny_training(config, prefix, steps) as trainer:

        def measure() -> None:
            found = []
            for ids in documents:
                tokens, labels = ids[None, :-1], ids[None, 1:]
                weights = torch.isin(labels, letters).float()
                with torch.no_grad():
                    found.append((float(trainer.stages[0](tokens, labels, weights).sum()), float(weights.sum())))
            means.append(sum(loss for loss, _ in found) / sum(count for _, count in found))

        measure()
        for step in range(1, steps + 1):
            trainer.train_step(step)
        measure()
    return means[0], means[1]


def test_masked_prompts_are_not_learned(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    draw = random.Random(5)
    rows = [
        [("user", "".join(draw.choices(RANDOM_LETTERS, k=16))), ("assistant", "x" * draw.randint(4, 9))]
        for _ in range(120)
    ]
    pair = write_rows(tmp_path, [[{"role": role, "content": text} for role, text in row] for row in rows])
    quick = ("training.learning_rate=1e-2", "training.epsilon=1e-8")
    learned = ranks(1).call(prompts_before_and_after, config_of(pair, *quick, "training.objective=pretrain"), pair, 30)
    masked = ranks(1).call(prompts_before_and_after, config_of(pair, *quick), pair, 30)
    [(before, after)], [(masked_before, masked_after)] = learned, masked
    assert masked_before == before
    # Four letters that follow by chance cost ln 4 nats each, and less than one of all tokens once they are learned.
    assert after < before - 1
    assert masked_after > masked_before


def test_computed_and_supervised_tokens_are_counted_over_all_ranks(pair: Path, alone: Callable[[str], Curve]) -> None:
    import numpy as np

    from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents
    from efficientbench.training.data.conversations import Conversations, PackedConversations

    training = config_of(pair).training
    split = split_documents([pair], (9, 1, 0), VOCABULARY, pair.parent / SPLITS)[0]
    batch = training.global_batch_size
    samples = PackedConversations(Conversations(pair, 48), split.training, STEPS * batch, training.seed, 0)
    masks = [float(samples[number]["loss_mask"].sum()) for number in range(STEPS * batch)]
    assert alone("gqa_1.5B")[1] == [
        (batch * 48, int(each)) for each in np.add.reduceat(masks, range(0, STEPS * batch, batch))
    ]
