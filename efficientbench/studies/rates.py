"""The learning rate of each variant: three rates around the lowest loss, and one slope that carries them up.

At the two smallest sizes, rates lie apart by a factor of 2 around a start, and one more is tried beyond an end at which
the lowest loss lies. The rate is the vertex of the parabola through the lowest and its two neighbours in ln(rate): more
points are worse, since a loss is steeper above its best rate than below. Of larger sizes it is

    ln rate = c of the variant + gamma ln N

with one gamma for all variants, which favours none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from efficientbench.basics.errors import MetricsError

FACTOR = 2.0
"""Between neighbouring rates of a search."""
MOST_FURTHER = 3
"""Rates that a search tries beyond its first three."""
SLOPE = -0.25
"""Mean of the normal prior of gamma."""
SLOPE_SPREAD = 0.15
_VERTEX_SPREAD = 0.15
"""Standard deviation of one vertex, in ln(rate)."""


def first_rates(start: float) -> tuple[float, float, float]:
    """Return the rates with which a search begins, ascending."""
    return start / FACTOR, start, start * FACTOR


def further_rate(name: str, losses: Mapping[float, float]) -> float | None:
    """Return the rate to try next; None where the lowest loss lies between two others.

    Args:
        name: the run, for the message.
        losses: rate → final loss in nats, the first three rates and those tried since; a diverged one is infinite.

    Raises:
        MetricsError: the lowest loss still lies at an end after MOST_FURTHER further rates.
    """
    rates = sorted(losses)
    lowest = min(rates, key=lambda rate: losses[rate])
    if lowest not in (rates[0], rates[-1]):
        return None
    if len(rates) >= 3 + MOST_FURTHER:
        end = "first" if lowest == rates[0] else "last"
        listed = " ".join(f"{losses[rate]:.2f}" for rate in rates)
        raise MetricsError(
            f"{name}: the lowest of {len(rates)} losses lies at the {end} rate, {lowest:.2g} ({listed}): training is "
            "not stable or the start is wrong"
        )
    return lowest / FACTOR if lowest == rates[0] else lowest * FACTOR


def vertex(losses: Mapping[float, float]) -> float:
    """Return the rate at the vertex of the parabola through the lowest loss and its two neighbours, in ln(rate).

    Where a neighbour diverged (its loss is infinite), that is the lowest loss's own rate. `further_rate` must be None.
    """
    rates = sorted(losses)
    place = min(range(len(rates)), key=lambda each: losses[rates[each]])
    three = rates[place - 1 : place + 2]
    below, lowest, above = (losses[rate] for rate in three)
    if not (math.isfinite(below) and math.isfinite(above)):
        return three[1]
    bend = below - 2 * lowest + above
    # Neighbours are FACTOR apart, so that the vertex is at most half of that away.
    return three[1] * FACTOR ** ((below - above) / (2 * bend) if bend else 0.0)


def carried(rates: Mapping[str, Mapping[float, float]], kept: float | None = None) -> tuple[float, dict[str, float]]:
    """Return gamma, and each variant's c, from the rates found: variant → N → rate.

    Least squares over all variants and sizes, with the prior of gamma; `kept`: the gamma of an earlier call, which
    stays.
    """
    slopes, weight = SLOPE / SLOPE_SPREAD**2, 1 / SLOPE_SPREAD**2
    centers: dict[str, tuple[float, float]] = {}
    for variant, found in rates.items():
        sizes, logs = np.log(list(found)), np.log(list(found.values()))
        centers[variant] = float(sizes.mean()), float(logs.mean())
        slopes += float((sizes - sizes.mean()) @ logs) / _VERTEX_SPREAD**2
        weight += float(((sizes - sizes.mean()) ** 2).sum()) / _VERTEX_SPREAD**2
    gamma = slopes / weight if kept is None else kept
    return gamma, {variant: log - gamma * size for variant, (size, log) in centers.items()}


def rate_at(gamma: float, c: float, parameters: float) -> float:
    """Return a variant's rate at a size of N parameters."""
    return math.exp(c + gamma * math.log(parameters))
