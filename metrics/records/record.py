"""Reads and writes `RunRecord`, everything known of a run, as one JSON file; all reports are made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from efficientbench.metrics.definitions import FORMULAS, speed_only_reason
from efficientbench.metrics.device_use import Disturbance, Timeline
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record_parts import DataSource, ExpertLoad, Outlier, QualityPoint, Window

SCHEMA_VERSION: Literal[3] = 3
RECORD_NAME = "record.json"
SKIPPED_FOLDERS = ("previous", "profile")
"""Folders beside a run's record: the attempts that it replaced, and a run that was slowed by being traced."""
MOST_OUTLIERS = 100
"""The largest number of steps that a record lists; a run with more has other troubles than single steps."""

# The parts are dataclasses that others build unchecked: without `revalidate_instances` a record could hold a NaN, which
# its reader would refuse.
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, revalidate_instances="always")


class Identity(BaseModel):
    """What was run, and on what."""

    model_config = _STRICT

    run: str
    variant: str
    size: str
    smoke: bool
    """A scaled-down model, whose figures do not stand for the named one's."""
    seed: int
    parameters: int | None
    """None, as the next two, where the model's formulas are not known; `unavailable` has the reason."""
    parameters_active: int | None
    flops_per_token: float | None
    """Forward and backward, matmuls only, causal attention halved."""
    devices: int
    device_name: str
    dtype: str
    seq_len: int
    micro_batch_size: int
    global_batch_size: int
    tp: int
    pp: int
    dp: int
    ep: int
    cp: int
    tokens: int
    """Trained on inside the measured window."""
    steps_measured: int


class Metrics(BaseModel):
    """The measured figures; None stands for one that could not be measured, and `unavailable` has the reason."""

    model_config = _STRICT

    amu_gb: float | None
    """Mean over devices of the memory used, GB (10^9 bytes)."""
    amu_fraction: float | None
    pcu: float | None
    al_s: float | None
    """Mean synchronized time of a step, the slowest rank's, s."""
    al_s_p50: float | None
    al_s_p90: float | None
    al_s_p99: float | None
    al_s_ci_low: float | None
    """95 % confidence interval of the mean: `metrics.statistics.step_time_noise`."""
    al_s_ci_high: float | None
    tt_tokens_per_param_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    aec_w: float | None
    """Mean power of a device, W."""
    power_w_sum: float | None
    energy_j: float | None
    energy_j_per_token: float | None
    energy_scope: str | None
    mfu: float | None
    """Causal attention counted halved."""
    mfu_full_square: float | None
    hfu: float | None
    peak_memory_allocated_bytes: int | None
    peak_memory_reserved_bytes: int | None
    peak_memory_device_bytes: int | None
    train_loss: float | None
    validation_loss: float | None
    perplexity: float | None
    bits_per_byte: float | None
    # Published tables have the columns above: they keep their places, and further figures follow.
    device_scope: str | None
    """What AMU, PCU, AEC and peak_memory_device_bytes are of: 'gpu', 'npu' or 'host'."""
    amu_gb_max: float | None
    """Of the device that used most."""
    amu_fraction_max: float | None
    memory_idle_gb: float | None
    """Mean over devices before the model was built."""
    memory_kind: str | None
    """How the memory used was counted: 'driver' (all of the device), 'pss' or 'rss' (the run's processes)."""
    memory_allocated_mean_gb: float | None
    """The allocator's own mean over the window."""
    al_s_std: float | None
    al_s_cv: float | None
    """Standard deviation over mean: the noise of a step's time."""
    tt_tokens_per_active_param_s: float | None
    energy_j_per_step: float | None
    tokens_per_j: float | None
    energy_source: str | None
    """'counter' or 'integrated power'."""
    window_s: float | None
    sample_interval_s: float | None
    """The longest in `sample_intervals_s`."""
    peak_flops: float | None
    """Of one device for this dtype, dense, FLOP/s."""
    peak_flops_source: str | None
    auxiliary_loss: float | None
    """Load-balancing loss of a mixture of experts, without its factor, mean over layers: 1 where all get as many."""
    expert_load_imbalance: float | None
    """Tokens of the busiest expert over the mean of its layer's experts; mean over layers."""
    al_s_p50_ci_low: float | None
    """95 % confidence interval of the median, by the same function."""
    al_s_p50_ci_high: float | None
    al_s_block_steps: int | None
    """Steps for which neighbours are alike: steps further apart than that are taken as independent."""
    al_s_drift_ratio: float | None
    """Time of a step at the window's end over that at its beginning: 1.05 is 5 % slower at the end."""
    al_s_drift_ratio_low: float | None
    """Lower end of the ratio's 95 % confidence interval."""
    al_s_drift_ratio_high: float | None
    al_s_drift_p: float | None
    """Chance of so clear a trend where there is none."""
    al_s_drift_flagged: bool | None
    """Whether the drift is significant and large enough to matter: thermal throttling, a device that others share."""
    outlier_steps: int | None
    """Steps that took much longer than the others: `outliers` names them."""
    validation_loss_se: float | None
    """Standard error of `validation_loss`, from the spread over the validation's documents: how far another sample of
    the text would move it. The noise between seeds is another one, which repeats show: of several, it is theirs."""
    tokens_trained: int | None
    """Since the start of the run, warm-up and earlier attempts included."""
    tokens_per_parameter: float | None
    """`tokens_trained` over all parameters."""
    unique_tokens: int | None
    """Different tokens of the text among `tokens_trained`."""
    epochs: float | None
    """How often the run read the training text; in a blend, the source that it repeated most."""
    unigram_entropy: float | None
    """Entropy of the frequencies of the text's tokens, nats: the loss of a model that knows nothing else."""


class RunRecord(Metrics, Identity):
    """One run: what it was, where it ran, what it measured, and why what is missing is missing."""

    schema_version: Literal[3] = SCHEMA_VERSION
    status: Literal["completed", "stopped", "failed"]
    started_at: str
    """UTC, ISO 8601."""
    duration_s: float
    """From start to end, set-up and evaluation included."""

    formula_id: str = FORMULAS
    """Which definitions the figures follow: see `efficientbench.metrics.definitions.FORMULAS`."""

    repeats: int = 1
    """Runs with consecutive seeds of which this record holds the mean; a run's own record holds one."""
    repeat_std: dict[str, float] = {}
    """Figure → its standard deviation over the repeats; empty for a single run."""
    unavailable: dict[str, str]
    """Name of a metric that is None → why."""
    step_time_percentiles_s: list[float] | None = None
    """The measured steps' times at 0, 1, …, 100 %, so that reports read no steps; None where no step was measured."""
    data: list[DataSource] | None = None
    """The corpora that the run read; None where the training loop did not name them."""
    experts: ExpertLoad | None = None
    """None for a model without experts."""
    keys_read_per_query: float | None = None
    """Mean keys that a query's attention reads in training; None for a model without attention."""
    dense_keys_per_query: float | None = None
    """Mean keys that dense causal attention reads; None for a model without attention."""
    samples: dict[str, int] = {}
    """'memory', 'utilization', 'power' → readings of it inside the window, of the device with fewest."""
    sample_intervals_s: dict[str, float] = {}
    """Quantity of `samples` → the longest mean interval of a device between its readings, s."""
    energy_doubt: str | None = None
    """Why `energy_j` may be wrong: its counter and the polled power differ. None: nothing speaks against it."""
    timelines: list[Timeline] = []
    """Memory, utilization and power of each device over time, for plots."""
    windows: list[Window] = []
    """The measured intervals."""
    disturbances: list[Disturbance] = []
    """When others used the run's devices; the 500 longest times."""
    kernels: dict[str, str]
    """Part of the model → the kernel that served it."""
    decayed_parameters: list[str] | None = None
    """Names of the parameters on which weight decay falls, with `*` for a layer's number; None where the training loop
    did not name them."""
    fallback_kernels: dict[str, str] = {}
    """Part of `kernels` that a better kernel would serve on this device type → why it did not."""
    attention_across_documents: bool | None = None
    """Whether a token attends to the earlier documents of its training sequence; None where the training loop did not
    say."""
    outliers: list[Outlier] = []
    """The slowest `outlier_steps`, at most MOST_OUTLIERS, in the order of the run."""
    resumed_after_steps: list[int] = []
    """Numbers of the steps after which the run resumed. The measured figures are of the last attempt alone, after a
    warm-up of its own; `quality_curve` holds the validations of all attempts."""
    lost: list[str] = []
    """What was damaged in the files of the run's earlier attempts, and is not in them any more."""
    quality_curve: list[QualityPoint] = []
    """Every validation of the run; empty where none ran."""
    validation_loss_se_values: int | None = None
    """Documents, or runs where the record stands for several, over which `validation_loss_se` is the spread: its
    interval is Student's. None where it is not known."""
    validation_sequence_losses: list[float] = []
    """Mean loss of a token of each validation sequence at the last validation, nats, in the order of the text; empty
    where it is not known. A sequence is a document, cut where it is very long: the same for every run that has the same
    `validation_text`, whatever its sequence length is."""
    validation_text: str | None = None
    """SHA-256 of the target tokens that the last validation scored; two models with the same value read the same text.
    None where it is not known."""
    config: dict[str, Any]
    """The resolved configuration."""
    environment: dict[str, Any]
    """The facts that `collect_environment` returned, and the sensors."""
    paths: dict[str, str]
    """Kind of output → its path, relative to the record's folder."""

    @property
    def micro_batch_size_asked(self) -> int:
        """Return the configured micro-batch, which exceeds the one used where memory did not suffice for it."""
        asked = self.section("training").get("micro_batch_size_asked")
        return asked if isinstance(asked, int) else self.micro_batch_size

    @property
    def speed_only_reason(self) -> str | None:
        """Return why the run's losses say nothing about its architecture; None where they may be compared."""
        return speed_only_reason(self.tokens_per_parameter, self.epochs, self.validation_loss, self.unigram_entropy)

    def section(self, name: str) -> dict[str, Any]:
        """Return a part of the configuration; empty where it has none."""
        found = self.config.get(name)
        return found if isinstance(found, dict) else {}

    @model_validator(mode="after")
    def _absent_needs_a_reason(self) -> RunRecord:
        missing = [n for n in Metrics.model_fields if getattr(self, n) is None and not self.unavailable.get(n)]
        if missing:
            raise ValueError(f"absent without a reason in 'unavailable': {', '.join(missing)}")
        return self


def columns() -> list[str]:
    """Return the names of a record's scalar figures, in the order of every table."""
    attention = ("keys_read_per_query", "dense_keys_per_query")
    run = ("status", "started_at", "duration_s", "formula_id", "repeats")
    return [*Identity.model_fields, *Metrics.model_fields, *attention, *run]


def write_record(record: RunRecord, path: Path) -> None:
    """Write the record as JSON. Raises MetricsError, and leaves a record that was there, where it cannot be written."""
    text = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, text + "\n")


def read_record(path: Path) -> RunRecord:
    """Read a record.

    Raises:
        MetricsError: no such file, no JSON, or not a record; the message names the file and every wrong key.
    """
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise MetricsError(f"{path}: {_readable(error)}") from None


def _readable(error: ValidationError) -> str:
    """Return all errors of a validation in one line, by key."""
    found = {".".join(map(str, item["loc"])): item for item in error.errors()}
    version, first = found.get("schema_version"), error.errors()[0]
    if version is not None:
        return f"written in schema version {version['input']}; this program reads {SCHEMA_VERSION}"
    if first["type"] == "json_invalid":
        return f"damaged, it is no JSON ({first['ctx']['error']})"
    messages = {where: item["msg"].removeprefix("Value error, ") for where, item in found.items()}
    listed = "; ".join(f"{where}: {message}" if where else message for where, message in messages.items())
    return f"not a run's record: {listed}"


def load_records(folder: Path) -> tuple[list[RunRecord], list[str]]:
    """Read all records below a folder.

    Records that a later one replaced (below a folder `previous`) and those of traced runs (`profile`) are left out,
    unless that folder itself is given.

    Returns:
        The records by run and start, and a message for each file that cannot be read as one.

    Raises:
        MetricsError: there is no such folder, or it cannot be read.
    """
    try:
        if folder.is_file():
            raise MetricsError(f"{folder}: is a file; give the folder that runs were written to")
        if not folder.is_dir():
            raise MetricsError(f"{folder}: there is no such folder to report on")
    except OSError as error:
        raise MetricsError(f"{folder}: cannot be read ({error.strerror})") from None
    records, damaged = [], []
    for path in current_files(folder, RECORD_NAME):
        try:
            records.append(read_record(path))
        except MetricsError as error:
            damaged.append(str(error))
    return sorted(records, key=lambda record: (record.run, record.started_at)), damaged


def current_files(folder: Path, name: str) -> list[Path]:
    """Return the files of that name below a folder, in order, without those below one of SKIPPED_FOLDERS."""
    return [
        path for path in sorted(folder.rglob(name)) if not set(SKIPPED_FOLDERS) & set(path.relative_to(folder).parts)
    ]
