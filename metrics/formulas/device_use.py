"""Holds how devices were used: timelines, disturbances, ranks' waits, conditions; for measurements and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from efficientbench.basics.grouped import grouped


@dataclass(frozen=True)
class Timeline:
    """One device over the whole run, in at most 500 buckets of equal length.

    All lists have one entry for each bucket that holds a sample. An entry is None where the bucket lacks the quantity.
    """

    device: str
    """The device's uuid."""
    device_name: str
    scope: str
    """'gpu', 'npu', 'host', 'allocator' (one rank's own), or the energy scope of a meter of the host's power."""
    bucket_s: float
    """Length of a bucket, s."""
    time_s: list[float]
    """The middle of the bucket, counted from the opening of the measured window: set-up and warm-up are negative."""
    memory_used_gb_mean: list[float | None]
    memory_used_gb_max: list[float | None]
    utilization_mean: list[float | None]
    """Busy fraction, 0 to 1."""
    utilization_max: list[float | None]
    power_w_mean: list[float | None]
    power_w_max: list[float | None]

    def __post_init__(self) -> None:
        """Raise ValueError if the bucket's length is not above 0, or the lists have different lengths."""
        lists = [value for value in vars(self).values() if isinstance(value, list)]
        if not self.bucket_s > 0 or len(set(map(len, lists))) > 1:
            raise ValueError("a timeline needs a bucket_s above 0, and lists of one length")


@dataclass(frozen=True)
class Disturbance:
    """A time in which something that is not of the run used a device."""

    device: str
    """The device's uuid."""
    begin_s: float
    """Counted from the opening of the measured window, s; from looks at intervals, so true to a second or so."""
    end_s: float
    """On the same scale as `begin_s`, s."""
    description: str
    share: float | None = None
    """The largest part of the device that it took, 0 to 1; None where nobody can know."""


@dataclass(frozen=True)
class RankWaits:
    """How long one rank's device waited for other ranks in a step, mean over the measured steps."""

    rank: int
    communication_s: float
    """For ranks of its own pipeline stage, and for what they send each other, where no computing hides it."""
    pipeline_s: float | None
    """For the other stages of its pipeline, and for what it gets from them; None where there is one stage."""


@dataclass(frozen=True)
class RankUse:
    """One rank in the measured window. None: it has no accelerator of its own, or no sensor read the figure."""

    rank: int
    step_time_s: float
    """Mean over its measured steps, by its own clock, with all that it waited."""
    amu_gb: float | None
    """Mean memory used on its accelerator."""
    peak_memory_gb: float | None
    """Most memory used on it."""
    pcu: float | None
    """Mean busy fraction, 0 to 1."""
    energy_j: float | None


@dataclass(frozen=True)
class MeterUse:
    """What a meter beside the devices' own counted in the measured window. None: `unavailable` has the reason."""

    name: str
    """What the meter counts, as its sensor calls it."""
    source: str
    """The sensor's class, as `package.module:Class`."""
    device: str | None
    """The meter's uuid; None: its sensor found no meter."""
    energy_j: float | None
    energy_source: str | None
    """'counter' (a register of the meter) or 'integrated power' (polled)."""
    power_w: float | None
    """Mean power."""
    power_idle_w: float | None
    """Mean power before the devices had work; None: it was not measured."""
    unavailable: str | None = None
    """Why there is no energy; None: there is."""
    energy_doubt: str | None = None
    """Why the energy may be wrong; None: nothing speaks against it."""

    def __str__(self) -> str:
        if self.energy_j is None:
            return f"{self.name} ({self.source}) has no energy: {self.unavailable}"
        return f"{self.name} ({self.source}) counted {self.energy_j:,.1f} J at {self.power_w:,.1f} W"

    @classmethod
    def of_repeats(cls, repeats: Sequence[Sequence[MeterUse]]) -> list[MeterUse]:
        """Return each meter's mean energy and power over repeats; no energy unless all repeats have it."""
        read = grouped(((use.source, use.device), use) for uses in repeats for use in uses)
        return [_mean_use(uses, len(repeats)) for uses in read.values()]


def _mean_use(uses: Sequence[MeterUse], repeats: int) -> MeterUse:
    energies_j = [use.energy_j for use in uses if use.energy_j is not None]
    if len(energies_j) < repeats:
        why = next((use.unavailable for use in uses if use.unavailable), "not every repeat has read it")
        return replace(uses[0], energy_j=None, energy_source=None, power_w=None, power_idle_w=None, unavailable=why)
    powers_w = [use.power_w for use in uses if use.power_w is not None]
    doubt = next((use.energy_doubt for use in uses if use.energy_doubt), None)
    means = replace(uses[0], energy_j=fmean(energies_j), power_w=fmean(powers_w))
    return replace(means, power_idle_w=None, energy_doubt=doubt)


CLOCKS_SET = "clocks that a user has set"
HARDWARE = "the hardware"
HEAT = ("heat (driver)", "heat (hardware)")
"""Causes of a lowered clock that code refers to; sensors report further ones as texts."""


@dataclass(frozen=True)
class DeviceSettings:
    """What limits speed and power of an accelerator. None: its driver does not report it."""

    power_limit_w: float | None = None
    """In force, whoever set it."""
    power_limit_default_w: float | None = None
    clock_max_mhz: float | None = None
    """Of the cores that compute."""
    memory_clock_max_mhz: float | None = None
    ecc: bool | None = None
    """Whether its memory corrects errors, which takes some of its bandwidth on some devices."""
    persistence: bool | None = None
    """Whether the driver stays loaded where nobody uses it."""
    pcie: str | None = None
    """Such as 'generation 5, 16 lanes'."""
    driver: str | None = None
    nvlinks: int | None = None
    """Links to other GPUs that are up."""


@dataclass(frozen=True)
class DeviceConditions:
    """An accelerator's settings, and how it fared in the measured window by readings a few seconds apart."""

    rank: int
    device: str
    """Its uuid."""
    settings: DeviceSettings
    temperature_c_max: float | None
    """None, as the next one: it was not read in the window."""
    clock_mhz_mean: float | None
    slowed_by: dict[str, float]
    """What kept its clock down → the share of the readings in which it did."""


@dataclass(frozen=True)
class MachineConditions:
    """What a machine gives to the ranks on it. None: it does not report it, as many virtual machines do not."""

    ranks: list[int]
    processor: str
    cores: float
    """That a rank may use: those of its affinity, or a lower quota of its cgroup."""
    governor: str | None = None
    """That chooses the cores' clocks, such as 'performance'."""
    clock_max_mhz: float | None = None
    """To which the governor is limited."""
    boost: bool | None = None
    """Whether cores may run above their nominal clock."""
    simultaneous_threads: bool | None = None
    """Whether two threads share a core."""
    is_virtual: bool | None = None
    container: str | None = None
    """Its kind, such as 'docker'; None: no sign of one."""
    image: str | None = None
    """The container's, without registry and folders; None where the container does not name it."""
    network: list[str] = field(default_factory=list)
    """Kind and rate of each adapter that has a device, without names and addresses."""
