"""What a run can evaluate while it trains."""

from __future__ import annotations

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve

ASKED = ["evaluation.core_every=3", "evaluation.core_data=bundle"]


@pytest.mark.parametrize("layout", ["parallel.pp=2", "parallel.cp=2"])
def test_ranks_that_score_no_prompts_are_refused(layout: str) -> None:
    with pytest.raises(ConfigError, match="ranks of sp, cp, pp and ep do not score prompts"):
        resolve("gqa_1.5B", smoke=True, overrides=[*ASKED, layout])
    assert resolve("gqa_1.5B", smoke=True, overrides=[*ASKED, "parallel.tp=2"]).evaluation.core_every == 3


def test_a_bundle_must_be_named() -> None:
    with pytest.raises(ConfigError, match="evaluation.core_data: missing"):
        resolve("gqa_1.5B", smoke=True, overrides=ASKED[:1])
