"""The time of a pipeline whose ranks share a host, and so compute faster while others wait."""

from __future__ import annotations

from collections.abc import Sequence

FORWARD = 1 / 3
"""A micro-batch's forward pass, of its forward and backward pass."""


def shared_pipeline_s(lengths_s: Sequence[float], micro_batches: int, slower: Sequence[float]) -> float:
    """Return the seconds in which stages take all micro-batches by 1F1B (arXiv 2104.04473, section 2.2.1).

    A pass begins once its stage has ended the pass before, and its neighbour the pass that it continues.

    Args:
        lengths_s: each stage's time of a micro-batch while it computes alone.
        micro_batches: how many there are.
        slower: by what factor a stage is slower while 1, 2, … stages compute.
    """
    orders = [_order(stage, len(lengths_s), micro_batches) for stage in range(len(lengths_s))]
    ended: set[tuple[int, bool, int]] = set()
    left: dict[int, float] = {}
    time_s = 0.0
    while any(orders):
        for stage, order in enumerate(orders):
            if order and stage not in left and _needed(stage, len(orders), *order[0]) <= ended:
                left[stage] = lengths_s[stage] * (FORWARD if order[0][0] else 1 - FORWARD)
        factor, step_s = slower[len(left) - 1], min(left.values())
        time_s += factor * step_s
        left = {stage: rest_s - step_s for stage, rest_s in left.items()}
        for stage in [stage for stage, rest_s in left.items() if rest_s <= 0]:
            del left[stage]
            ended.add((stage, *orders[stage].pop(0)))
    return time_s


def _order(stage: int, stages: int, micro_batches: int) -> list[tuple[bool, int]]:
    """Return a stage's passes in order: whether forward, and the micro-batch."""
    first = min(stages - stage - 1, micro_batches)
    order = [(True, number) for number in range(first)]
    for number in range(micro_batches - first):
        order += [(True, first + number), (False, number)]
    return order + [(False, number) for number in range(micro_batches - first, micro_batches)]


def _needed(stage: int, stages: int, forward: bool, number: int) -> set[tuple[int, bool, int]]:
    """Return the neighbour's pass that a pass continues; nothing at the pipeline's ends."""
    before = stage - 1 if forward else stage + 1
    return {(before, forward, number)} if 0 <= before < stages else set()
