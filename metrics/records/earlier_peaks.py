"""Doubts a rate of matrix products that is far below what the same machine reached in an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, read_record

FAR_BELOW = 0.8
"""Least share of an earlier rate that is believed: clocks and other work on a machine change its best rate by less."""
_SAME = {"device_name": None, "devices": None, "dtype": None, "tp": 1, "pp": 1, "dp": 1, "ep": 1, "cp": 1}
"""Facts that the earlier run must share beside the machine itself, since the ranks of a host share its cores → what
they are where a run does not name them."""
_MACHINE = ("hostname", "cores")


def why_too_low(
    reached_flops: float | None, folder: Path, run: Mapping[str, object], environment: Mapping[str, object]
) -> str | None:
    """Return why a measured peak is not used; None where no run beside it reached far more.

    Args:
        reached_flops: the rate of matrix products that one device reached, FLOP/s; None: it was not measured.
        folder: the folder of the run, or of one of its repeats.
        run: the run's facts, by the record's field names.
        environment: the facts of `collect_environment`.
    """
    if reached_flops is None:
        return None
    best = 0.0
    for around in (folder.parent, folder.parent.parent):
        for path in (*around.glob(f"*/{RECORD_NAME}"), *around.glob(f"*/seed_*/{RECORD_NAME}")):
            with suppress(MetricsError):
                if _alike(record := read_record(path), run, environment):
                    best = max(best, record.measured_peak_flops or 0.0)
    if reached_flops >= FAR_BELOW * best:
        return None
    return (
        f"large matrix products reached {reached_flops:.3g} FLOP/s, and {best:.3g} in an earlier run on this machine: "
        "something slowed it, or it had fewer threads"
    )


def _alike(record: RunRecord, run: Mapping[str, object], environment: Mapping[str, object]) -> bool:
    machine = all(record.environment.get(name) == environment.get(name) for name in _MACHINE)
    return machine and all(getattr(record, name) == run.get(name, unnamed) for name, unnamed in _SAME.items())
