"""Which runs can be compared: they differ in their model alone."""

from __future__ import annotations

import json
from collections.abc import Sequence

from metrics.record import RunRecord

_SAME = ("smoke", "device_name", "devices", "dtype", "seq_len", "global_batch_size", "energy_scope", "formula_id")


def group(record: RunRecord) -> str:
    """The same text for runs that can be compared with each other."""
    return json.dumps([*(getattr(record, name) for name in _SAME), _data(record)], sort_keys=True, default=str)


def differing(records: Sequence[RunRecord]) -> list[str]:
    """What the runs differ in, beside their model: 'seq_len (128, 1024)'."""
    found = []
    for name in _SAME:
        found_values = [getattr(record, name) for record in records]
        values = list(dict.fromkeys(str(value) for value in found_values if value is not None))
        if len(values) > 1:
            shown = ", ".join(values[:4]) + (", …" if len(values) > 4 else "")
            found.append(f"{name} ({shown})")
    data = [_data(record) for record in records]
    if len({json.dumps(source, sort_keys=True, default=str) for source in data if source is not None}) > 1:
        found.append("data")
    return found


def _data(record: RunRecord) -> object:
    if record.data is not None:
        return [(source.fingerprint, source.weight) for source in record.data]
    data = record.config.get("data")
    return {key: value for key, value in data.items() if key != "cache"} if isinstance(data, dict) else None
