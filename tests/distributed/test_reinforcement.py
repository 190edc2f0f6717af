"""Reinforcement learning on the ranks that train: one run in every layout, that resumes the same, and that learns."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from support.configs import tiny
from support.conversation_pairs import VOCABULARY, write_conversations
from support.outside_rewards import write_questions
from support.ranks import Ranks
from support.tiny_training import Observed, tiny_training

from efficientbench.config.schema import RunConfig
from efficientbench.metrics.formulas.student import half_interval_95

STEPS, SAMPLES, QUESTIONS = 3, 4, 4
SEEDS, LEARNING_STEPS, EDGE = (1, 2, 3), 30, 5
LAYOUTS = {
    "DP 2": (2, ["parallel.dp=2"]),
    "TP 2": (2, ["parallel.tp=2"]),
    "TP 2 x DP 2": (4, ["parallel.tp=2", "parallel.dp=2"]),
    # Replicas of 1 and 2 questions, and one question at a time.
    "3 questions, DP 2": (2, ["parallel.dp=2", "training.global_batch_size=12", "rl.batch=2"]),
    "DP 2, by Muon": (2, ["parallel.dp=2", "training.optimizer=muon"]),
    "TP 2, by Muon": (2, ["parallel.tp=2", "training.optimizer=muon"]),
}
CELLS = [
    ("gqa_1.5B", "DP 2"),
    ("gqa_1.5B", "TP 2"),
    *(
        pytest.param(name, "TP 2", marks=pytest.mark.proof)
        for name in ("mla_1.5B", "nsa_1.5B", "learnable_absolute_1.5B")
    ),
    pytest.param("gqa_1.5B", "TP 2 x DP 2", marks=pytest.mark.proof),
    pytest.param("gqa_1.5B", "3 questions, DP 2", marks=pytest.mark.proof),
    *(pytest.param("gqa_1.5B", layout, marks=pytest.mark.proof) for layout in ("DP 2, by Muon", "TP 2, by Muon")),
    pytest.param("moe_1.5Bx8", "DP 2", marks=pytest.mark.proof),
]


@dataclass
class Learned(Observed):
    """What a rank saw of some steps."""

    answers: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    """Tokens of every rollout of a step, with its prompt."""
    rewards: list[float] = field(default_factory=list)
    """Means of the steps."""
    without_signal: list[int] = field(default_factory=list)
    moved: bool = False
    """Whether a weight is another one at the end."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_questions(folder / "questions.jsonl", 7)
    return write_conversations(folder, 100)


def config_of(pair: Path, *overrides: str, name: str = "gqa_1.5B") -> RunConfig:
    return tiny(
        name,
        *("training.objective=rl", "training.seq_len=64", f"training.global_batch_size={QUESTIONS * SAMPLES}"),
        *(f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]", f"data.path={pair}", f"data.cache={pair.parent}"),
        *(f"rl.questions={pair.parent / 'questions.jsonl'}", "rl.reward=support.outside_rewards:ascii_share"),
        *(f"rl.samples={SAMPLES}", "rl.max_new_tokens=8"),
        *overrides,
    )


def learned(config: RunConfig, prefix: Path, steps: int, first: int = 1, device_name: str = "cpu") -> Learned:
    """Answer, reward and learn for the steps from `first` on."""
    from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
    from efficientbench.training.reinforcement.questions import Questions
    from efficientbench.training.update.optimizer import gather_weights
    from efficientbench.worker.listeners.scores import evaluating
    from efficientbench.worker.reinforcement.sampler import Sampler

    tokenizer, found = load_tokenizer(prefix.parent / "bpe"), Learned()
    with tiny_training(config, prefix, steps, found.listen, device_name=device_name) as trainer:
        [stage] = trainer.stages
        before = [parameter.detach().clone() for parameter in stage.parameters()]
        sampler = Sampler(config, tokenizer, Questions(config, tokenizer, "of bytes"))
        for step in range(first, steps + 1):
            with evaluating(trainer) as model:
                sampled = sampler.sample(model, step, lambda ended: None)
            trainer.batches.rollouts = sampled.rollouts  # type: ignore[attr-defined]
            found.answers.append(tuple(each.tokens for each in sampled.rollouts))
            found.rewards.append(sampled.mean_reward)
            found.without_signal.append(sampled.without_signal)
            trainer.train_step(step)
        gather_weights(trainer.stages)
        after = list(stage.parameters())
        found.moved = any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return found


def assert_same(found: Learned, expected: Learned) -> None:
    assert found.answers == expected.answers
    assert found.rewards == expected.rewards
    assert found.losses == pytest.approx(expected.losses, rel=1e-4, abs=1e-6)
    assert found.norms == pytest.approx(expected.norms, rel=1e-4)


@pytest.mark.parametrize(("name", "layout"), CELLS)
def test_every_layout_has_the_same_answers_and_learns_the_same(
    name: str, layout: str, ranks: Callable[..., Ranks], pair: Path
) -> None:
    size, overrides = LAYOUTS[layout]
    words = [word for word in overrides if word.startswith("training.")]
    [alone] = ranks(1).call(learned, config_of(pair, *words, name=name), pair, STEPS)
    assert len(alone.answers) == STEPS
    assert all(norm > 0 for norm in alone.norms)
    for found in ranks(size).call(learned, config_of(pair, *overrides, name=name), pair, STEPS):
        assert_same(found, alone)


@pytest.mark.proof
def test_the_simulated_npu_has_the_answers_of_the_cpu(ranks: Callable[..., Ranks], pair: Path) -> None:
    [alone] = ranks(1).call(learned, config_of(pair), pair, STEPS)
    [found] = ranks(1, "npu").call(learned, config_of(pair), pair, STEPS, 1, "npu:0")
    assert_same(found, alone)


def test_answers_depend_only_on_seed_question_and_sample(ranks: Callable[..., Ranks], pair: Path) -> None:
    # The weights stay, so that every step answers by those of the first.
    still = ("training.learning_rate=1e-30", "training.min_learning_rate=0", "training.weight_decay=0")
    [whole] = ranks(1).call(learned, config_of(pair, *still), pair, 3)
    [later] = ranks(1).call(learned, config_of(pair, *still, "rl.batch=4"), pair, 3, 3)
    assert later.answers == whole.answers[2:]
    assert len(set(whole.answers[0])) > 1
    # Of seven questions, the second epoch asks some of the first step again in the third: their answers are others.
    assert not set(whole.answers[0]) & set(whole.answers[2])
    [other] = ranks(1).call(learned, config_of(pair, *still, "training.seed=5"), pair, 1)
    assert other.answers[0] != whole.answers[0]


def test_an_external_task_asks_and_rewards(ranks: Callable[..., Ranks], pair: Path) -> None:
    task = ("rl.task=support.outside_task:Plain", "rl.questions=null")
    [by_name] = ranks(1).call(learned, config_of(pair, *task), pair, 2)
    [by_task] = ranks(1).call(learned, config_of(pair, *task, "rl.reward=null"), pair, 2)
    # One function, found in two ways; a score would be 0 for all.
    assert by_task.rewards == by_name.rewards
    assert by_task.losses == by_name.losses
    assert min(by_task.rewards) > 0
    assert sum(by_task.without_signal) < 2 * QUESTIONS


# Experts would move by their load-balancing loss.
@pytest.mark.parametrize(("name", "optimizer"), [("gqa_1.5B", "adamw"), ("gqa_1.5B", "muon"), ("moe_1.5Bx8", "adamw")])
def test_equal_rewards_change_no_weight(name: str, optimizer: str, ranks: Callable[..., Ranks], pair: Path) -> None:
    reward = "rl.reward=support.outside_rewards:all_the_same"
    same = (reward, "training.weight_decay=0", f"training.optimizer={optimizer}")
    [found] = ranks(1).call(learned, config_of(pair, *same, name=name), pair, 2)
    assert found.without_signal == [QUESTIONS] * 2
    assert found.losses == found.norms == [0, 0]
    assert not found.moved


@pytest.mark.proof
def test_a_learnable_reward_rises(ranks: Callable[..., Ranks], pair: Path) -> None:
    """Over three seeds, of weights and of answers: the gain's 95 % interval lies above 0."""
    gains = []
    for seed in SEEDS:
        fast = ("training.learning_rate=1e-2", "training.lr_warmup_fraction=0", "training.epsilon=1e-8")
        config = config_of(pair, *fast, f"training.seed={seed}", "training.global_batch_size=32", "rl.samples=8")
        [found] = ranks(1).call(learned, config, pair, LEARNING_STEPS)
        gains.append(statistics.fmean(found.rewards[-EDGE:]) - statistics.fmean(found.rewards[:EDGE]))
    margin = half_interval_95(statistics.stdev(gains) / len(gains) ** 0.5, len(gains))
    assert margin is not None
    assert statistics.fmean(gains) > margin, gains
