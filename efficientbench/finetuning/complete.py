"""Compare a fine-tuning with the record or the checkpoint of an earlier one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from efficientbench.basics.errors import MetricsError
from efficientbench.finetuning.config import SAME, FinetuneConfig
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record import read_record
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import differences, settings


def is_complete(folder: OutputFolder, config: FinetuneConfig, device_name: str) -> bool:
    """Return whether the folder holds the complete record of this configuration on devices of this name."""
    with contextlib.suppress(MetricsError):
        record = read_record(folder.record)
        found = (record.status, record.device_name, record.formula_id)
        return found == ("completed", device_name, FORMULAS) and not trained_differently(record.config, config)
    return False


def trained_differently(recorded: Mapping[str, Any], config: FinetuneConfig) -> list[str]:
    """Return the keys by which an earlier run's configuration, read from JSON, trains or measures otherwise."""
    return differences(settings(with_later_keys(recorded), SAME), settings(config.model_dump(mode="json"), SAME))


def with_later_keys(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an earlier run's configuration with later keys added; their defaults do what earlier runs did."""
    try:
        return FinetuneConfig.model_validate(recorded).model_dump(mode="json")
    except ValidationError:
        return recorded
