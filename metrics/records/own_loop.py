"""Writes records of users' own loops, which reports, `compare` and CSV read as they read this project's runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.monitoring.aggregate import merge
from efficientbench.metrics.monitoring.measurement import RankMeasurement, RunMeasurement
from efficientbench.metrics.records.earlier_peaks import why_too_low
from efficientbench.metrics.records.environment import collect_environment, sensor_states
from efficientbench.metrics.records.facts import Quality, RunFacts, Validation
from efficientbench.metrics.records.record import (
    FAILURE_NAME,
    OF_FORMULAS,
    RECORD_NAME,
    RunRecord,
    Status,
    write_record,
)
from efficientbench.metrics.records.summarize import measured_parts, quality_curve, summarize
from efficientbench.metrics.sensors.hardware import DTYPES, peak_flops

PACKAGES = ("efficientbench", "torch", "torch-npu", "transformers", "accelerate", "lightning")
"""Packages whose versions a record holds."""
REPEAT = re.compile(r"seed_(\d{1,18})")
"""The folder of one of several repeats, with its seed."""
NOT_COUNTED = "the loop gave neither flops_per_token nor a model that counts them"


@dataclass(frozen=True)
class OwnLoop:
    """What a user's own loop runs, as its record needs it."""

    run: str
    seq_len: int
    """Tokens of a sequence; the mean if lengths differ."""
    micro_batch_size: int
    """Sequences of one forward and backward pass on one rank."""
    global_batch_size: int
    """Sequences of an optimizer step, over all ranks."""
    dtype: str | None
    """Dtype of the matrix products: bf16, fp16 or fp32; None where `dtype_unknown` has the reason."""
    seed: int
    parameters: int | None
    flops_per_token: float | None
    """FLOPs of one token, forward and backward; None: nobody counted them."""
    flops_source: str
    """Who counted the FLOPs, or why nobody did."""
    peak_flops: float | None
    """Dense FLOP/s of one device; None: the table of devices has it, or there is no MFU."""
    measured_peak_flops: float | None = None
    """Rate of matrix products that the device reached, FLOP/s, where no table has its peak; None: not measured."""
    dtype_unknown: str | None = None
    variant: str | None = None
    """The architectural choice that the run stands for; None: that of its name."""
    size: str | None = None
    """The size by which reports set it beside others; None: 'own'."""

    @classmethod
    def of(
        cls,
        folder: Path,
        sizes: tuple[int, int, int],
        dtype: Any,
        seed: int | None,
        model: Any,
        flops_per_token: float | None,
        peak_flops: float | None,
        measured: Sequence[RankMeasurement],
    ) -> OwnLoop:
        """Return what a loop runs; FLOPs, parameters and dtype that are not given are the model's own.

        Args:
            folder: the folder of this run alone; its name is the run's. `seed_1` and `seed_2` in one folder are repeats
                of one run, whose name is that folder's.
            sizes: `seq_len`, `micro_batch_size` and `global_batch_size`.
            dtype: the dtype of the matrix products, by any name; None: that of the model's parameters.
            seed: the run's seed; None: the one in the folder's name, else 0.
            model: a torch module; None: there is none to ask.
            flops_per_token: FLOPs of one token, forward and backward; None: the model's own count.
            peak_flops: dense FLOP/s of one device; None: that of the table of devices, or else of products on the spot.
            measured: every rank's measurement.
        """
        dtype, unknown = dtype_of(model, dtype)
        folder = folder.resolve()
        repeat = REPEAT.fullmatch(folder.name)
        return cls(
            (folder.parent.name if repeat else "") or folder.name,
            int(sizes[0]),
            int(sizes[1]),
            int(sizes[2]),
            dtype,
            (int(repeat[1]) if repeat else 0) if seed is None else int(seed),
            parameters_of(model),
            *counted_flops(model, flops_per_token),
            peak_flops,
            peak_on_the_spot(model, dtype, measured, peak_flops),
            unknown,
        )


def counted_flops(model: Any, given: float | None) -> tuple[float | None, str]:
    """Return the FLOPs of a token, forward and backward, and who counted them; or None and why nobody did.

    Without `given`, a model counts its own in a method `estimate_flops`, as nanochat's does, or by transformers'
    convention: six for each parameter outside embeddings.
    """
    if given is not None:
        return given, "flops_per_token"
    if callable(getattr(model, "estimate_flops", None)):
        try:
            return float(model.estimate_flops()), "model.estimate_flops()"
        except Exception as error:  # the model's own code; what was measured is written all the same
            return None, f"model.estimate_flops() failed: {type(error).__name__}: {error}"
    if callable(getattr(model, "num_parameters", None)):
        counted = 6.0 * model.num_parameters(exclude_embeddings=True)
        return counted, "6 × model.num_parameters(exclude_embeddings=True), as transformers' Trainer counts"
    return None, NOT_COUNTED


def dtype_of(model: Any, given: Any) -> tuple[str | None, str | None]:
    """Return the dtype of the matrix products, `given` or else that of the model's parameters; or None and why."""
    found = given if given is not None else getattr(next(_parameters(model), None), "dtype", None)
    if found is None:
        return None, "the loop gave neither dtype nor a model that has one"
    name = str(found).removeprefix("torch.")
    known = name if name in DTYPES.values() else DTYPES.get(name)
    return known, None if known else f"the loop's dtype, {name}, is none of bf16, fp16 and fp32"


def parameters_of(model: Any) -> int | None:
    """Return the number of a torch model's parameters, shared ones once; None without a torch model."""
    return sum(each.numel() for each in _parameters(model)) or None


def _parameters(model: Any) -> Iterator[Any]:
    return iter(model.parameters()) if callable(getattr(model, "parameters", None)) else iter(())


def peak_on_the_spot(
    model: Any, dtype: str | None, measured: Sequence[RankMeasurement], given: float | None
) -> float | None:
    """Measure the rate of matrix products on a model's device whose peak is not known, FLOP/s.

    Return None if the peak is known or given, without a model or dtype, and for several ranks, which would have to
    measure together.
    """
    names, parameter = merge(measured).device_names, next(_parameters(model), None)
    if parameter is None or dtype is None or given is not None or len(measured) > 1:
        return None
    if not names or peak_flops(names[0], dtype)[0]:
        return None
    from efficientbench.metrics.monitoring.matmul_peak import measured_matmul_flops

    return measured_matmul_flops(parameter.device, dtype)


def plain(config: Any) -> tuple[dict[str, Any], int | None]:
    """Return a loop's configuration, a mapping or an object with attributes, as JSON holds it, and its `seed` apart.

    What JSON lacks becomes its text. None is no configuration; without a whole number as `seed` that is None.
    """
    given = dict(config if isinstance(config, Mapping) else vars(config) if config is not None else {})
    seed = given.pop("seed", None)
    text = json.dumps(given, default=str, skipkeys=True)
    return json.loads(text, parse_constant=str), seed if isinstance(seed, int) else None


def write_own_record(
    folder: Path,
    loop: OwnLoop,
    run: RunMeasurement,
    ranks: int,
    started_at: datetime,
    duration_s: float,
    validations: Sequence[Validation] = (),
    config: Mapping[str, Any] | None = None,
    status: Status = "completed",
) -> Path:
    """Write a loop's record into a folder, made if missing, and return its path; replace an existing record.

    `run` is what `ranks` processes measured together, `config` the loop's configuration as `plain` returns it.

    Raises MetricsError: the folder or the record cannot be written, or a value is none that a record can hold.
    """
    path = folder / RECORD_NAME
    with os_errors_as(MetricsError, f"{folder}: cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    environment = collect_environment(PACKAGES, Path.cwd())
    try:
        place, facts = _facts(folder, loop, run, ranks, environment)
        summary = summarize(run, facts, _quality(run, validations))
        absent = {name: NOT_COUNTED for name in OF_FORMULAS if getattr(facts, name) is None}
        if loop.dtype_unknown:
            absent["dtype"] = loop.dtype_unknown
        record = RunRecord(
            run=loop.run,
            variant=loop.variant or loop.run,
            size=loop.size or "own",
            seed=loop.seed,
            parameters=loop.parameters,
            parameters_active=loop.parameters,
            flops_per_token=loop.flops_per_token,
            seq_len=loop.seq_len,
            micro_batch_size=loop.micro_batch_size,
            global_batch_size=loop.global_batch_size,
            **place,
            **summary.values,
            **measured_parts(run, summary.outliers),
            status=status,
            started_at=started_at.isoformat(timespec="milliseconds"),
            duration_s=duration_s,
            formula_id=FORMULAS,
            quality_curve=quality_curve(run, [each for each in validations if each.tokens]),
            unavailable=summary.unavailable | absent,
            config={**(config or {}), "own_loop": asdict(loop)},
            environment=environment | {"sensors": sensor_states(run.sensors)},
        )
    except ValidationError as error:
        raise MetricsError(f"{path}: {RunRecord.readable(error)}") from None
    write_record(record, path)
    return path


def write_failure(folder: Path, error: str | None, step: int) -> None:
    """Write which error ended a loop after that step, as a failed run has it; None: none, and an earlier one goes.

    Raises MetricsError: the file cannot be written.
    """
    path = folder / FAILURE_NAME
    path.unlink(missing_ok=True)
    if error is not None:
        write_whole(path, json.dumps({"kind": "crash", "reason": error, "step": step}, ensure_ascii=False) + "\n")


def check_flops(flops_per_token: float | None, peak_flops: float | None) -> None:
    """Raise MetricsError if FLOPs of a token or FLOP/s of a device that a loop gives are not above 0."""
    for name, value, what in (
        ("flops_per_token", flops_per_token, "FLOPs of a token"),
        ("peak_flops", peak_flops, "FLOP/s of a device"),
    ):
        if value is not None and not 0 < value < math.inf:
            raise MetricsError(f"{name}={value:g}: {what} are above 0")


def _facts(
    folder: Path, loop: OwnLoop, run: RunMeasurement, ranks: int, environment: dict[str, Any]
) -> tuple[dict[str, Any], RunFacts]:
    """Return the devices and the dtype, by the record's field names, and what figures are computed from."""
    # A host is one device, however many ranks compute on it. If a sensor found no device, assume one for each rank.
    least = 1 if run.device_scope == "host" or "memory_kind" not in run.unavailable else ranks
    devices, name = max(least, len(run.device_names)), run.device_names[0] if run.device_names else "unknown"
    peak, source = loop.peak_flops, "peak_flops of the loop"
    if not peak:
        peak, source = peak_flops(name, loop.dtype) if loop.dtype else (None, loop.dtype_unknown or "")
    reached = None if peak else loop.measured_peak_flops
    place: dict[str, Any] = {"device_name": name, "devices": devices, "dtype": loop.dtype, "dp": ranks}
    return place, RunFacts(
        parameters=loop.parameters,
        parameters_active=loop.parameters,
        devices=devices,
        flops_per_token=loop.flops_per_token,
        flops_per_token_full_square=None,
        flops_per_token_hardware=None,
        peak_flops=peak,
        peak_flops_source=source,
        not_counted=NOT_COUNTED,
        measured_peak_flops=reached,
        measured_peak_doubt=why_too_low(reached, folder, place, environment),
    )


def _quality(run: RunMeasurement, validations: Sequence[Validation]) -> Quality:
    if not validations:
        return Quality()
    last, later = validations[-1], max(run.step_numbers, default=0) - validations[-1].step
    if later > 0:
        why = f"the loop trained {number_of(later, 'step')} after its last validation"
        return Quality(reasons={"validation_loss": why})
    unknown = "the loop gave no losses of single documents"
    return Quality(validation_loss=last.loss, reasons={"validation_loss_se": unknown})
