"""The first line of every plan: time, device hours, energy and money of the whole budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.basics.counted import number_of, seconds
from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.sensors.hardware import known_device
from efficientbench.planning.basis import Calibrated, basis
from efficientbench.planning.efficiency import Reached
from efficientbench.planning.plan import Plan
from efficientbench.planning.table import ABSENT

LEAST_SHARE = 0.5
"""The least share of a device's TDP that an energy without a measurement assumes; the most is all of it."""
HOUR_S, KWH_J = 3600, 3.6e6


@dataclass(frozen=True)
class Bill:
    """What a run takes; None where it is not known."""

    time_s: float | None
    devices: int
    energy_j: float | None
    """Energy by the measurement of another run; None: there is none on such a device."""
    source: str
    """Where the energy is from, or why there is no time."""
    reached: Reached | Calibrated | None = None
    """What published runs or a calibration reached, where the time is a projection with it."""
    bounded: bool = True
    """Whether the device's TDP bounds the energy where there is none; else nothing is said of it."""


def bill(
    plan: Plan, step_time_s: float | None, source: str, energy_j: float | None = None, device: str | None = None
) -> Bill:
    """Return what a run takes.

    Args:
        plan: its plan.
        step_time_s: the time of a step; None: it is not known.
        source: where the energy is from, or why there is no time.
        energy_j: the run's energy; None: there is no measurement.
        device: the device on which the time is projected, by a name that `basis` takes; None: it is not.
    """
    reason = not_estimated(plan)
    if reason is not None or step_time_s is None:
        return Bill(None, plan.layout.world_size, None, reason or source)
    found = None if device is None else basis(device, plan.config, plan.layout.world_size).reached
    whole_s = step_time_s * plan.budget.steps
    return Bill(whole_s * share_held(plan, whole_s), plan.layout.world_size, energy_j, source, found)


def not_estimated(plan: Plan) -> str | None:
    """Return why a run's time is not estimated; None where it is."""
    if plan.config.training.objective == "rl":
        return "the answers that a run samples between its steps take a time that is not estimated"
    if not plan.budget.counted:
        return "training.epochs: the steps follow from the text, which is not counted yet"
    return None


def share_held(plan: Plan, training_s: float | None) -> float:
    """Return the share of the steps that a run makes within its time limit; `training_s`: of all steps."""
    budget = plan.budget
    if budget.time_limit_s is None or not training_s:
        return 1.0
    # The warm-up and the fewest measured steps are made in any case.
    least = budget.warmup_steps + plan.config.measurement.min_steps
    held = budget.warmup_steps + budget.time_limit_s * budget.steps / training_s
    return min(1.0, max(least, held) / budget.steps)


def first_line(bills: Sequence[Bill], at_once: int, device: str | None, price_per_hour: float | None = None) -> str:
    """Return the line with time, device hours, kWh and, with a price, money of all runs.

    Args:
        bills: what each run takes.
        at_once: most runs at the same time.
        device: the device's name, by which its TDP is found; None: no device is named.
        price_per_hour: the price of one device for an hour, in any currency.
    """
    runs = "" if len(bills) == 1 else f" of {number_of(len(bills), 'run')}"
    missing = next((each.source for each in bills if each.time_s is None), None)
    if missing is not None or not bills:
        return f"whole budget{runs}: time, device hours, kWh {ABSENT}: {missing or 'no run is to do'}"
    times = [each.time_s or 0.0 for each in bills]
    device_s = sum(time_s * each.devices for time_s, each in zip(times, bills, strict=True))
    # A run on devices of its own is the least that many runs at once take.
    whole = f"{seconds(max(sum(times) / at_once, max(times)))}{_beside(len(times), at_once)}"
    parts = [whole, f"{device_s / HOUR_S:,.3g} device hours"]
    parts.append(_energy(bills, device_s, device))
    if price_per_hour is not None:
        parts.append(f"{device_s / HOUR_S * price_per_hour:,.2f} at {price_per_hour:g} for a device and hour")
    errors = dict.fromkeys(each.reached.time_range for each in bills if each.reached)
    return f"whole budget{runs}: {', '.join(parts)}{''.join(f'; {error}' for error in errors)}"


def _beside(runs: int, at_once: int) -> str:
    """Return in words how many of the runs the time takes at once; empty for one run."""
    if runs == 1:
        return ""
    if at_once == 1:
        return " one after the other"
    return f" with {'all' if at_once >= runs else at_once} at once"


def _energy(bills: Sequence[Bill], device_s: float, device: str | None) -> str:
    """Return the energy in words: by measurement where each run has one, else by the TDP where that bounds each."""
    measured = [each.energy_j for each in bills if each.energy_j is not None]
    if len(measured) == len(bills):
        return f"{sum(measured) / KWH_J:,.3g} kWh ({bills[0].source})"
    if unbounded := next((each for each in bills if not each.bounded), None):
        return f"kWh {ABSENT} ({unbounded.source})"
    try:
        tdp_w = known_device(device).tdp_w if device is not None else None
    except MetricsError:
        tdp_w = None
    if tdp_w is None:
        return f"kWh {ABSENT} (neither a measurement nor a TDP of {device or 'the device'} is known)"
    most = device_s * tdp_w / KWH_J
    return (
        f"{LEAST_SHARE * most:,.3g} to {most:,.3g} kWh (not measured: from {LEAST_SHARE:.0%} to all of a TDP of "
        f"{tdp_w:g} W, devices alone)"
    )
