"""lm-eval's figures as ours: numpy's numbers too, and without its counts."""

from __future__ import annotations

import numpy as np

from efficientbench.evaluation.lm_eval.run import _summary
from efficientbench.evaluation.task import Summary


def test_every_finite_number_is_a_figure_and_others_are_absent() -> None:
    found = _summary(
        {
            "alias": "made_here",
            "sample_len": 9,
            "acc,none": 0.25,
            "exact_match,strict-match": np.float64(0.5),
            "f1,none": np.float32(1),
            "perplexity,none": float("nan"),
            "acc_stderr,none": "N/A",
        }
    )
    assert found == Summary(
        {"acc": 0.25, "exact_match,strict-match": 0.5, "f1": 1.0, "perplexity": None},
        {"perplexity": "lm-eval computed nan"},
    )
    assert {type(value) for value in found.figures.values() if value is not None} == {float}
