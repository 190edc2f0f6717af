"""Whether a folder already holds what a run would give."""

from __future__ import annotations

from efficientbench.config.schema import RunConfig
from efficientbench.metrics.analysis.repeats import flat
from efficientbench.metrics.definitions import FORMULAS
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.records.record import RunRecord, read_record
from efficientbench.running.output_folder import OutputFolder

PLACES = ("output", "data.cache")
"""Keys that say where files lie, which they may do elsewhere by now."""

_MICRO_BATCH, _ASKED = "training.micro_batch_size", "training.micro_batch_size_asked"
_FUSED = "kernels.fused"


def complete_record(
    folder: OutputFolder, config: RunConfig, micro_batch_size: int, device_name: str, smaller: bool = False
) -> RunRecord | None:
    """The complete record of just this configuration, measured as it would be now; None where the folder has none.

    Args:
        folder: of the run.
        config: as asked for.
        micro_batch_size: the configuration's, fitted to the devices.
        device_name: of this machine's devices.
        smaller: take also a record whose micro-batch had to be smaller for lack of memory.
    """
    try:
        record = read_record(folder.record)
    except MetricsError:
        return None
    here = (record.device_name, record.formula_id) == (device_name, FORMULAS)
    same = _same(record, config, micro_batch_size, smaller)
    return record if here and record.status == "completed" and same else None


def _same(record: RunRecord, config: RunConfig, micro_batch_size: int, smaller: bool) -> bool:
    recorded, wanted = flat(record.config), flat(config.model_dump(mode="json"))
    wanted[_MICRO_BATCH] = micro_batch_size
    if wanted[_FUSED] is None:  # the device's to decide, which is the same
        wanted[_FUSED] = recorded.get(_FUSED)
    if smaller and recorded.get(_ASKED) is not None:
        recorded[_MICRO_BATCH], recorded[_ASKED] = recorded[_ASKED], None
    return all(recorded.get(key) == wanted.get(key) for key in {*recorded, *wanted} if key not in PLACES)
