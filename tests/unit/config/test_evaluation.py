"""What a run can evaluate while it trains."""

from __future__ import annotations

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve

ASKED = ["evaluation.core_every=3", "evaluation.core_data=bundle"]


@pytest.mark.parametrize("layout", ["parallel.pp=2", "parallel.cp=2"])
def test_core_is_refused_on_layouts_that_cannot_score_prompts(layout: str) -> None:
    with pytest.raises(ConfigError, match="ranks of sp, cp, pp and ep do not score prompts"):
        resolve("gqa_1.5B", smoke=True, overrides=[*ASKED, layout])
    assert resolve("gqa_1.5B", smoke=True, overrides=[*ASKED, "parallel.tp=2"]).evaluation.core_every == 3


def test_core_without_a_bundle_is_refused() -> None:
    with pytest.raises(ConfigError, match="evaluation.core_data: missing"):
        resolve("gqa_1.5B", smoke=True, overrides=ASKED[:1])
