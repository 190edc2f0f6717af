"""Sample answers to a step's questions on the training ranks, and reward them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.generation.calls import find_calculator, spoken
from efficientbench.generation.generate import Emitted, generate
from efficientbench.generation.sampling import Sampling
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training import groups
from efficientbench.training.reinforcement.advantages import Rollout, advantages, without_signal
from efficientbench.training.reinforcement.questions import Question, Questions
from efficientbench.training.reinforcement.rewards import find_reward, reward_of_task, rewards_of

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


@dataclass(frozen=True)
class Answer:
    """One answer to one question."""

    turn: int
    """The question's turn, as `Questions.of_step` counts turns."""
    sample: int
    """Number of the answer among those to its question."""
    tokens: list[int]
    """The tokens of the answer, without the prompt's."""
    sampled: list[bool]
    """For each token, whether the model chose it, and not the calculator."""
    reward: float


@dataclass(frozen=True)
class StepRollouts:
    """The rollouts that one step learns from."""

    rollouts: list[Rollout]
    """The rollouts of all replicas, in the order of questions and samples."""
    mean_reward: float
    without_signal: int
    """Questions whose answers all have the same reward."""
    tokens: int
    """Tokens of all answers."""


class Sampler:
    """Answers the questions of a step. An answer depends on weights, seed, question, turn and sample alone."""

    def __init__(self, config: RunConfig, tokenizer: TextTokenizer, questions: Questions) -> None:
        """Find the reward.

        Raises:
            ConfigError: there is no reward of that name.
        """
        self.rl, self.tokenizer, self.questions = config.rl, tokenizer, questions
        named, task = config.rl.reward, questions.examples.task
        self.reward = find_reward(named) if named is not None else reward_of_task(task)
        self.reward_name = named if named is not None else f"of {config.rl.task}"
        """The reward's name in messages."""
        self.sampling = Sampling(config.rl.temperature, config.rl.top_k or None, seed=config.training.seed)
        renderer = questions.renderer
        self.calculator = find_calculator(renderer, tokenizer.decode)
        self.special = {**renderer.token_ids, "": tokenizer.eod_id}
        self.stop = (renderer.end_id, tokenizer.eod_id)

    def sample(self, model: GPT, step: int, progress: Callable[[str], None]) -> StepRollouts:
        """Answer a step's questions; all ranks must call this together, in evaluation mode.

        Replicas divide the questions. Tensor-parallel ranks answer theirs together, and the first of them rewards.

        Args:
            model: this rank's part of the model.
            step: the step, counted from 1.
            progress: called with a phrase on how far this rank is.

        Raises:
            GenerationError: the model computed NaN or infinity.
            RewardError: the reward failed.
        """
        (replica, replicas), asked = groups.replica(), self.questions.of_step(step)
        own = asked[replica::replicas]
        written = self._write(model, own, progress)
        answers = self._rewarded(own, written, progress) if groups.holds_loss() else []
        found = {(each.turn, each.sample): each for part in gather(answers, list[Answer]) for each in part}
        ordered = [[found[turn, sample] for sample in range(self.rl.samples)] for turn, _ in asked]
        rewards = torch.tensor([[each.reward for each in row] for row in ordered], dtype=torch.float64)
        gained = advantages(rewards).tolist()
        rollouts = [
            _rollout(question, answer, advantage)
            for (_, question), row, gains in zip(asked, ordered, gained, strict=True)
            for answer, advantage in zip(row, gains, strict=True)
        ]
        tokens = sum(len(each.tokens) for row in ordered for each in row)
        return StepRollouts(rollouts, float(rewards.mean()), without_signal(rewards), tokens)

    def _write(
        self, model: GPT, own: Sequence[tuple[int, Question]], progress: Callable[[str], None]
    ) -> dict[tuple[int, int], list[Emitted]]:
        """Return the tokens of each answer, by turn and sample."""
        written: dict[tuple[int, int], list[Emitted]] = {}
        ended = 0
        steps = generate(
            model,
            [question.prompt for _, question in own],
            self.sampling,
            self.rl.max_new_tokens,
            self.stop,
            samples=self.rl.samples,
            batch=self.rl.batch,
            calculator=self.calculator,
            numbers=[turn for turn, _ in own],
        )
        for emitted in steps:
            for each in emitted:
                written.setdefault((each.row.prompt, each.row.sample), []).append(each)
                ended += each.last
            progress(f"sampling answers, {ended:,} have ended")
        return written

    def _rewarded(
        self,
        own: Sequence[tuple[int, Question]],
        written: dict[tuple[int, int], list[Emitted]],
        progress: Callable[[str], None],
    ) -> list[Answer]:
        answers: list[Answer] = []
        for turn, question in own:
            # A reward may take long, as that of a judge does.
            progress(f"rewarding answers, {len(answers):,} are rewarded")
            rows = [written[turn, sample] for sample in range(self.rl.samples)]
            tokens = [[each.token for each in row] for row in rows]
            texts = [self.tokenizer.decode(spoken(row, self.special)) for row in tokens]
            place = self.questions.examples.place(question.row)
            rewards = rewards_of(self.reward_name, self.reward, question.example, texts, place)
            answers += [
                Answer(turn, sample, tokens[sample], [not each.forced for each in rows[sample]], rewards[sample])
                for sample in range(self.rl.samples)
            ]
        return answers


def _rollout(question: Question, answer: Answer, advantage: float) -> Rollout:
    before = (False,) * len(question.prompt)
    return Rollout((*question.prompt, *answer.tokens), (*before, *answer.sampled), advantage)
