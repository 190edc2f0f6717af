"""Keys of reinforcement learning: questions, rewards, samples, and test questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from efficientbench.basics.part import NonNegativeInt, Part, PositiveFloat, PositiveInt, require

if TYPE_CHECKING:
    from efficientbench.config.parallel import ParallelConfig
    from efficientbench.config.training import TrainingConfig


def _several(samples: int) -> int:
    if samples < 2:
        raise ValueError("an answer is learned by how much better it is than the others to its question: 2 or more")
    return samples


class ReinforcementConfig(Part):
    """Questions, samples and rewards of training.objective=rl; its batch is training.global_batch_size answers."""

    task: str = Field(
        default="gsm8k",
        description="task of the questions: one of `efficientbench list tasks`, or package.module:Class",
    )
    questions: str | None = Field(
        default=None, description="file, folder or glob of the task's rows to learn from; unset: the task makes its own"
    )
    reward: str | None = Field(
        default=None,
        description="what an answer is worth; unset: what the task says, by itself 1 where the answer is right, else "
        "0; or one of `efficientbench list rewards`, or package.module:function: your (example, answer) → number, "
        "imported because your command names it",
    )
    samples: Annotated[PositiveInt, AfterValidator(_several)] = Field(
        default=16, description="answers to each question, 2 or more; the questions of a step follow from its batch"
    )
    max_new_tokens: PositiveInt = Field(default=256, description="longest answer, in tokens")
    temperature: PositiveFloat = Field(
        default=1.0, description="divides the logits that answers are sampled from; at 1 they are the model's own"
    )
    top_k: NonNegativeInt = Field(
        default=0, description="how many of the most likely tokens may be sampled; 0: all, as the model itself would"
    )
    batch: PositiveInt = Field(
        default=64, description="answers that a rank samples at once; those to one question stay together"
    )
    test_every: NonNegativeInt = Field(
        default=0, description="steps between tests, which answer the test questions and record pass@k; 0: none"
    )
    test_questions: str | None = Field(
        default=None, description="file or folder of the task's rows to test on; unset: the task makes its own"
    )
    test_limit: PositiveInt = Field(default=400, description="test questions, at most")
    test_samples: PositiveInt = Field(default=8, description="answers to each test question, by rl.temperature")

    def check(self, training: TrainingConfig, parallel: ParallelConfig) -> None:
        """Check that this training on these ranks can learn by these keys. Raises ValueError."""
        if training.objective != "rl":
            require((self == ReinforcementConfig(), "rl: its keys are for training.objective=rl alone"))
            return
        shared = [
            f"parallel.{name}={getattr(parallel, name)}" for name in ("pp", "cp", "ep") if getattr(parallel, name) > 1
        ]
        shared += ["parallel.sp=true"] * parallel.sp
        size, near = training.global_batch_size, max(training.global_batch_size // self.samples, 1) * self.samples
        require(
            (
                not shared,
                f"training.objective=rl: answers are sampled on the ranks that train, and ranks of "
                f"{', '.join(shared)} cannot sample; tp and dp can",
            ),
            (
                size % self.samples == 0,
                f"training.global_batch_size {size:,} is no whole number of questions of "
                f"rl.samples={self.samples} answers each: {near:,} is",
            ),
            (
                self.max_new_tokens <= training.seq_len,
                f"rl.max_new_tokens {self.max_new_tokens:,} leaves no room for a "
                f"question in training.seq_len={training.seq_len:,}",
            ),
        )
