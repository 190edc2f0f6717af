"""Layouts that are refused before any rank starts."""

from __future__ import annotations

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.parallel import ParallelConfig
from efficientbench.generation.on_ranks import check_shared


def test_ranks_that_cannot_share_a_model_are_refused() -> None:
    gqa, moe = resolve("gqa_1.5B"), resolve("moe_1.5Bx8")
    for config in (gqa, moe):
        check_shared(config, ParallelConfig(tp=2, dp=1), 1, oversubscribe=True)
        with pytest.raises(ConfigError, match="--tp: 5 does not divide the 12 heads"):
            check_shared(config, ParallelConfig(tp=5, dp=1), 8, oversubscribe=False)
        with pytest.raises(ConfigError, match="= 4 ranks, but there are 2 devices"):
            check_shared(config, ParallelConfig(tp=4, dp=1), 2, oversubscribe=False)


def test_limits_of_training_do_not_apply_to_generation() -> None:
    config = resolve("gqa_1.5B", overrides=["training.global_batch_size=6", "training.micro_batch_size=3"])
    check_shared(config, ParallelConfig(tp=2, dp=5), 1, oversubscribe=True)
