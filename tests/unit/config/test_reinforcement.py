"""What reinforcement learning needs of a run, and what is refused."""

from __future__ import annotations

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve

ASKED = ["training.objective=rl", "rl.samples=4", "rl.max_new_tokens=32"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["parallel.pp=2"], "answers are sampled on the ranks that train, and ranks of parallel.pp=2 cannot sample"),
        (["parallel.cp=2"], "ranks of parallel.cp=2 cannot sample; tp and dp can"),
        (["parallel.tp=2", "parallel.sp=true"], "ranks of parallel.sp=true cannot sample"),
        (["rl.samples=1"], "rl.samples: .*2 or more"),
        (["rl.samples=3"], "training.global_batch_size 8 is no whole number of questions of rl.samples=3 .* 6 is"),
        (["rl.max_new_tokens=97"], "rl.max_new_tokens 97 leaves no room for a question in training.seq_len=96"),
        (["training.objective=sft"], "its keys are for training.objective=rl alone"),
    ],
)
def test_impossible_settings_of_reinforcement_learning_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("gqa_1.5B", smoke=True, overrides=[*ASKED, *overrides])


def test_tensor_parallel_ranks_and_replicas_sample() -> None:
    config = resolve("gqa_1.5B", smoke=True, overrides=[*ASKED, "parallel.tp=2", "parallel.dp=2"])
    assert (config.training.objective, config.rl.samples, config.rl.task) == ("rl", 4, "gsm8k")
