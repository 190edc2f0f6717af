"""The peak of the devices of a fine-tuning: what the table or the user gives, else the rate of matrix products here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efficientbench.devices.base import Device
from efficientbench.finetuning.job import TuningJob
from efficientbench.metrics.hardware import peak_flops

if TYPE_CHECKING:
    import torch


def devices_of(job: TuningJob, device: Device) -> int:
    """Return the number of accelerators, or of hosts where the host is the device."""
    return job.nodes if device.memory_capacity_bytes() is None else job.world


def peak_of(job: TuningJob, device: Device) -> tuple[float | None, str]:
    """Return the peak of one device, FLOP/s, and where it is from; or None, and why it is not known."""
    given = job.config.measurement.peak_flops
    if given is not None:
        return given, "configuration (measurement.peak_flops)"
    return peak_flops(device.names()[0], job.config.training.dtype)


def peak_on_the_spot(job: TuningJob, device: Device, torch_device: torch.device) -> float | None:
    """Return the rate of matrix products of one device, FLOP/s; None where all ranks know the peak.

    All ranks call it together, before the model takes their memory.
    """
    from efficientbench.metrics.monitoring.exchange import gather
    from efficientbench.metrics.monitoring.matmul_peak import measured_matmul_flops

    def of_all(value: Any, kind: type) -> list[Any]:
        return gather(value, kind) if job.world > 1 else [value]

    # Together, also where only some have no peak: the ranks of a host share its cores.
    if not any(of_all(peak_of(job, device)[0] is None, bool)):
        return None
    reached = measured_matmul_flops(torch_device, job.config.training.dtype)
    return float(sum(of_all(reached, float)) / devices_of(job, device))
