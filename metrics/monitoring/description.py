"""A run's measurement in a few lines of text."""

from __future__ import annotations

import math

from efficientbench.metrics.definitions import BYTES_PER_GB, average_latency, percentile
from efficientbench.metrics.monitoring.measurement import RunMeasurement


def describe(run: RunMeasurement) -> str:
    """Step time, throughput, memory, utilization and energy, one line each; 'n/a' with the reason where absent."""
    times = run.step_times_s
    if not times:
        return "no step was measured"

    def absent(name: str) -> str:
        return f"n/a ({run.unavailable.get(name, 'not measured')})"

    median_ms, p90_ms = percentile(times, 50) * 1e3, percentile(times, 90) * 1e3
    lines = {
        "steps": f"{len(times)} measured, {average_latency(times) * 1e3:,.1f} ms each "
        f"(half under {median_ms:,.1f} ms, nine of ten under {p90_ms:,.1f} ms)",
        "throughput": f"{run.tokens / math.fsum(times):,.0f} tokens/s",
        "memory": absent("amu_gb") if run.amu_gb is None else _memory(run),
        "utilization": absent("pcu") if run.pcu is None else f"{run.pcu:.1%}",
        "energy": absent("energy_j") if run.energy_j is None else _energy(run),
    }
    devices = ", ".join(f"{run.device_names.count(name)} × {name}" for name in sorted(set(run.device_names)))
    return "\n".join(f"{name:<12} {text}" for name, text in {"devices": devices or "n/a", **lines}.items())


def _memory(run: RunMeasurement) -> str:
    share = "" if run.amu_fraction is None else f" ({run.amu_fraction:.1%} of the capacity)"
    peak = "" if run.peak_used_bytes is None else f", at most {run.peak_used_bytes / BYTES_PER_GB:,.2f} GB"
    return f"{run.amu_gb:,.2f} GB{share}{peak}"


def _energy(run: RunMeasurement) -> str:
    per_token = f"{run.energy_j / run.tokens:.4g} J/token, " if run.energy_j and run.tokens else ""
    return f"{per_token}{run.energy_j:,.1f} J at {run.power_w_sum:,.1f} W ({run.energy_scope}, {run.energy_source})"
