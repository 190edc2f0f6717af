"""The learning rate of every step against the formulas of its shapes, by numpy's lines through their corners."""

from __future__ import annotations

import numpy as np
import pytest
from support.configs import tiny

from efficientbench.training.update.schedule import learning_rate

PEAK, END, STEPS = 3e-3, 2e-4, 40
RATES = (f"training.learning_rate={PEAK}", f"training.min_learning_rate={END}")


def rates(*overrides: str, steps: int = STEPS) -> list[float]:
    """Of steps 1 to the last."""
    training = tiny("gqa_1.5B", *RATES, *(f"training.{override}" for override in overrides)).training
    return [learning_rate(training, step, steps) for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("overrides", "corners"),
    [
        (("lr_schedule=linear",), [(0, 0), (4, PEAK), (40, END)]),
        (("lr_schedule=linear", "lr_warmup_fraction=0"), [(0, PEAK), (40, END)]),
        (("lr_schedule=linear", "lr_warmup_fraction=0.5", "lr_scale=0.02"), [(0, 0), (20, PEAK / 50), (40, END / 50)]),
        (("lr_schedule=wsd",), [(0, 0), (4, PEAK), (32, PEAK), (40, END)]),
        (
            ("lr_schedule=trapezoid", "lr_warmup_fraction=0", "lr_decay_fraction=0.65", "lr_scale=3"),
            [(0, 3 * PEAK), (14, 3 * PEAK), (40, 3 * END)],
        ),
        (("lr_schedule=trapezoid", "lr_decay_fraction=0"), [(0, 0), (4, PEAK), (40, PEAK)]),
        (("lr_schedule=trapezoid", "lr_decay_fraction=0.9"), [(0, 0), (4, PEAK), (40, END)]),
        (("lr_warmup_fraction=1",), [(0, 0), (40, PEAK)]),
        # A step has 128 tokens.
        (("lr_schedule=wsd", "lr_warmup_tokens=768"), [(0, 0), (6, PEAK), (32, PEAK), (40, END)]),
        (("lr_schedule=linear", "lr_warmup_tokens=0"), [(0, PEAK), (40, END)]),
    ],
)
def test_linear_schedules_match_interpolated_corners(
    overrides: tuple[str, ...], corners: list[tuple[float, float]]
) -> None:
    expected = np.interp(np.arange(1, STEPS + 1), *zip(*corners, strict=True))
    assert rates(*overrides) == pytest.approx(expected.tolist(), rel=1e-12)


def test_a_rise_in_tokens_depends_on_no_length_and_no_batch() -> None:
    """Every rate until the shortest run's fall is p · min(1, t · B / W), whatever the length and the batch B."""
    for steps in (20, 40, 1000):
        for batch in (4, 8, 16):
            words = ("lr_schedule=wsd", "lr_warmup_tokens=1024", f"global_batch_size={batch}")
            rising = [PEAK * min(1, step * batch * 16 / 1024) for step in range(1, 17)]
            assert rates(*words, steps=steps)[:16] == pytest.approx(rising, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_lr_scale_multiplies_the_complete_cosine(scale: float) -> None:
    rise = [scale * PEAK * step / 4 for step in range(1, 5)]
    fall = scale * (END + (PEAK - END) * (1 + np.cos(np.pi * np.arange(1, 37) / 36)) / 2)
    assert rates(f"lr_scale={scale}") == pytest.approx([*rise, *fall], rel=1e-12)


def test_warm_up_and_decay_that_both_round_up_do_not_overlap() -> None:
    """Half of five steps is two or three: a rise and a fall of three would overlap."""
    found = rates("lr_schedule=trapezoid", "lr_warmup_fraction=0.7", "lr_decay_fraction=0.3", steps=5)
    assert found == pytest.approx([PEAK / 4, PEAK / 2, 3 * PEAK / 4, PEAK, END])
