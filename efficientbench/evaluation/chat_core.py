"""ChatCORE: the chat tasks in one figure, each counted from what guessing gives."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from efficientbench.evaluation.task import Summary

BASELINES = {"arc_easy": 0.25, "arc_challenge": 0.25, "mmlu": 0.25, "gsm8k": 0.0, "humaneval": 0.0}
"""The accuracy of guessing (nanochat, scripts/chat_eval.py of 14 October 2025)."""


def chat_core(summaries: Mapping[str, Summary]) -> Summary | None:
    """Return the mean of (accuracy − baseline) / (1 − baseline) over all five; None without one of them."""
    if not BASELINES.keys() <= summaries.keys():
        return None
    centred = {}
    for name, baseline in BASELINES.items():
        accuracy = summaries[name].figures["accuracy"]
        assert accuracy is not None
        centred[name] = (accuracy - baseline) / (1 - baseline)
    return Summary({"chat_core": fmean(centred.values())}, parts={"centred": centred})
