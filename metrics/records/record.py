"""Reads and writes `RunRecord`, everything known of a run, as one JSON file; all reports are made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, model_validator

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.basics.files import sha256
from efficientbench.metrics.formulas.definitions import speed_only_reason
from efficientbench.metrics.formulas.device_use import (
    DeviceConditions,
    Disturbance,
    MachineConditions,
    MeterUse,
    RankUse,
    RankWaits,
    Timeline,
)
from efficientbench.metrics.records.figure import LARGEST, Few, fact, rows_of
from efficientbench.metrics.records.figures import Identity, Metrics
from efficientbench.metrics.records.record_parts import (
    DataSource,
    ExpertLoad,
    Outlier,
    ParameterGroup,
    Preflight,
    QualityPoint,
    Rechecks,
    Reinforcement,
    TrainingScore,
    Window,
)
from efficientbench.metrics.records.stored import Stored, iso_time

SCHEMA_VERSION: Literal[3] = 3
"""Rises when a field changes its meaning or is removed; a new figure does not raise it."""
RECORD_NAME = "record.json"
FAILURE_NAME = "failure.json"
"""Says beside the record why a run did not come to its end."""
Status = Literal["completed", "stopped", "failed"]
MOST_OUTLIERS = 100
"""The largest number of outliers that a record lists; a run with more has other troubles than single steps."""
NOT_RECORDED = "the record does not hold it"
"""Why a figure is absent that the record's writer did not know."""

OF_FORMULAS = ("parameters", "parameters_active", "flops_per_token")
"""Facts that are None where the model's formulas are not known."""
MAY_LACK = (*OF_FORMULAS, "dtype")
"""Facts that a record may lack, with the reason."""
_Finite = Annotated[float, Field(le=LARGEST)]


class RunRecord(Metrics, Identity):
    """One run: what it was, where it ran, what it measured, and why what is missing is missing."""

    file_name = RECORD_NAME
    kind_of_file = "a run's record"

    # fmt: off
    keys_read_per_query: float | None = fact("keys", "mean keys that a query's attention reads in training",
        default=None)
    dense_keys_per_query: float | None = fact("keys", "mean keys that dense causal attention reads in training",
        default=None)
    status: Status = fact("", "completed, stopped (on request) or failed")
    started_at: Annotated[str, AfterValidator(iso_time)] = fact("UTC", "when the run began, ISO 8601")
    duration_s: NonNegativeFloat = fact("s", "from start to end, set-up and evaluation included")
    formula_id: str = fact("", "the edition of the formulas; rows of different ids are not compared")
    repeats: Annotated[Few, Field(ge=1)] = fact("runs",
        "with consecutive seeds, of which the row holds the mean; intervals are then over runs", default=1)
    data_seed: int | None = fact("", "of the data order (`data.seed`)", default=None)
    # fmt: on

    schema_version: Literal[3] = SCHEMA_VERSION
    repeat_std: dict[str, float] = {}
    """Figure → its standard deviation over the repeats; empty for a single run."""
    unavailable: dict[str, str] = {}
    """Name of a metric that is None → why."""
    step_time_percentiles_s: Annotated[list[_Finite], Field(min_length=101, max_length=101)] | None = None
    """The measured steps' times at 0, 1, …, 100 %, so that reports read no steps; None where no step was measured."""
    data: list[DataSource] | None = None
    """The corpora that the run read; None where the training loop did not name them."""
    experts: ExpertLoad | None = None
    """None for a model without experts."""
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
    rank_waits: list[RankWaits] = []
    """The ranks' own waits of `exposed_communication_s` and `pipeline_bubble_s`; empty where these are absent."""
    rank_uses: list[RankUse] = []
    """Step time, memory, utilization and energy of each rank; empty for a single one, or where no step was measured."""
    device_conditions: list[DeviceConditions] = []
    """Settings of each accelerator, and how it fared in the measured window; empty where no driver reported them."""
    machine_conditions: list[MachineConditions] = []
    """What the ranks' machines gave them, one entry for all ranks that have the same; empty where nobody asked."""
    meters: list[MeterUse] = []
    """What meters beside the devices' own counted (`measurement.meters`); never a part of the figures above."""
    kernels: dict[str, str] = {}
    """Part of the model → the kernel that served it."""
    kernel_reasons: dict[str, str] = {}
    """Part of `kernels` that was chosen by measurement → the times, and the kernels that do not serve: each run has its
    own, so that nothing is grouped or compared by them."""
    decayed_parameters: list[str] | None = None
    """Names of the parameters on which weight decay falls, with `*` for a layer's number; None where the training loop
    did not name them."""
    parameter_groups: list[ParameterGroup] = []
    """Which optimizer updates which parameters at which rate; empty where the training loop did not say."""
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
    rechecks: Rechecks | None = None
    """Micro-batches that were computed twice, of all attempts of the run; None where none was."""
    nondeterministic: dict[str, str] = {}
    """Part of a run with `training.deterministic` → why its bits may differ all the same from one run to the next."""
    time_limit_s: float | None = None
    """Time of measured steps, s, after which the run was to end, since nobody had set its length; None: it was set."""
    preflight: Preflight | None = None
    """How devices and links compared before the first step (`faults.preflight_s`), in the last attempt; None: they were
    not measured."""
    lost: list[str] = []
    """What was damaged in the files of the run's earlier attempts, and is not in them any more."""
    quality_curve: list[QualityPoint] = []
    """Every validation of the run; empty where none ran."""
    training_scores: list[TrainingScore] = []
    """What `evaluation.core_every` and `rl.test_every` found, in the order of steps; empty for several runs."""
    evaluations: list[TrainingScore] = []
    """What `evaluate` found of checkpoints, each task's last, in the order of steps; empty for several runs."""
    validation_loss_se_values: Few | None = None
    """Documents, or runs where the record stands for several, over which `validation_loss_se` is the spread: its
    interval is Student's. None where it is not known."""
    validation_sequence_losses: list[float] = []
    """Mean loss of a token of each validation sequence at the last validation, nats, in the order of the text; empty
    where it is not known. A sequence is a document, cut where it is very long: the same for every run that has the same
    `validation_text`, whatever its sequence length is."""
    validation_text: str | None = None
    """SHA-256 of the target tokens that the last validation scored; two models with the same value read the same text.
    None where it is not known."""
    reinforcement: Reinforcement | None = None
    """What a run with `training.objective=rl` sampled; else None."""
    finetuning: dict[str, Any] = {}
    """Of a fine-tuning: its curriculum, its examples, the saved numbers, and held-out losses by level; else empty."""
    config: dict[str, Any] = {}
    """The resolved configuration."""
    environment: dict[str, Any] = {}
    """The facts that `collect_environment` returned, and the sensors."""
    paths: dict[str, str] = {}
    """Kind of output → its path, relative to the record's folder."""
    steps_sha256: str | None = None
    """SHA-256 (hex) of the steps' file beside the record, `paths["steps"]`; writing the record for the first time sets
    it. None where there was no such file, and in records of earlier versions and of other tools."""
    sha256: str | None = None
    """SHA-256 (hex) of all else in the file, as JSON with sorted keys and no spaces, in ASCII; writing it sets it. None
    in records of earlier versions and of other tools, in which damage is not found."""

    def write(self, path: Path) -> None:
        """Write the record as `Stored.write` does, with the checksum of its steps' file where that lies beside it."""
        steps = self.steps_file(path)
        with os_errors_as(MetricsError, f"{steps}: cannot be read"):
            found = None if steps is None or self.steps_sha256 is not None else sha256(steps)
        Stored.write(self if found is None else self.model_copy(update={"steps_sha256": found}), path)

    def steps_file(self, path: Path) -> Path | None:
        """Return the steps' file beside the record at `path`; None where none lies there."""
        name = self.paths.get("steps", "")
        steps = path.parent / name
        return steps if name == Path(name).name and steps.is_file() else None

    @property
    def micro_batch_size_asked(self) -> int:
        """Return the configured micro-batch, which exceeds the one used where memory did not suffice for it."""
        asked = self.section("training").get("micro_batch_size_asked")
        return asked if isinstance(asked, int) else self.micro_batch_size

    @property
    def speed_only_reason(self) -> str | None:
        """Return why the run's losses say nothing about its architecture; None where they may be compared."""
        # A run that began with another run's weights has what that run learned, from however many tokens.
        begun = self.section("init").get("run") and not self.branched_after
        own = None if begun else self.tokens_per_parameter
        return speed_only_reason(own, self.epochs, self.validation_loss, self.unigram_entropy)

    @property
    def branched_after(self) -> int:
        """Return after how many steps of its trunk the run began (`init.state=everything`); 0 where it is no branch.

        Losses, `tokens_trained` and what follows from it are of the trunk's part too; times and energies are not.
        """
        init = self.section("init")
        step = init.get("step")
        return step if init.get("state") == "everything" and isinstance(step, int) else 0

    @property
    def begins_late(self) -> bool:
        """Whether the measured steps follow others whose times the record lacks: of earlier attempts, or of a trunk."""
        return bool(self.resumed_after_steps or self.branched_after)

    def section(self, name: str) -> dict[str, Any]:
        """Return a part of the configuration; empty where it has none."""
        found = self.config.get(name)
        return found if isinstance(found, dict) else {}

    @model_validator(mode="after")
    def _figures_can_be_reported(self) -> RunRecord:
        """Refuse a figure that would overflow, or is null without a reason; a missing figure was not recorded."""
        figures = {name: getattr(self, name) for name in (*Metrics.model_fields, *MAY_LACK)}
        large = [name for name, value in figures.items() if isinstance(value, int | float) and abs(value) > LARGEST]
        if large:
            raise ValueError(f"larger than {LARGEST:g}: {', '.join(large)}")
        for name in figures.keys() - self.model_fields_set:
            self.unavailable.setdefault(name, NOT_RECORDED)
        missing = [name for name, value in figures.items() if value is None and not self.unavailable.get(name)]
        if missing:
            raise ValueError(f"absent without a reason in 'unavailable': {', '.join(missing)}")
        return self


FIGURES = rows_of(RunRecord)
"""Name of a record's scalar → its row, in the order of every table."""


read_record, write_record = RunRecord.read, RunRecord.write
