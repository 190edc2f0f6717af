"""`efficientbench generate --measure`: measure each combination, write the record after each row, print a table."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from efficientbench.architecture.registry import load_kinds
from efficientbench.basics.errors import ConfigError, GenerationError, MetricsError
from efficientbench.config.matrix import MATRIX
from efficientbench.config.quantization import FULL, Quantization, split_widths
from efficientbench.config.schema import RunConfig
from efficientbench.costs.quantization import disk_bytes
from efficientbench.devices.base import Device
from efficientbench.devices.quantized import Form
from efficientbench.devices.registry import find_device
from efficientbench.generation.command import INTERRUPTED
from efficientbench.generation.generate import check_lengths
from efficientbench.generation.memory import Case, batch_that_fits, too_large, usable_bytes
from efficientbench.generation.open_run import form_here, in_one_process, opened, with_random_weights
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.records.environment import sensor_states
from efficientbench.metrics.records.generation.generation import (
    GENERATION_NAME,
    GenerationRecord,
    GenerationRow,
    read_generation,
    write_generation,
)
from efficientbench.metrics.records.record import read_record
from efficientbench.metrics.report.sections.generation import beside, print_generation
from efficientbench.metrics.sensors.hardware import memory_bandwidth
from efficientbench.planning import generation_plan
from efficientbench.planning.vocabulary import resolve_run
from efficientbench.running.failures import ran_out_of_memory
from efficientbench.running.identity import run_environment, subject
from efficientbench.running.output_folder import OutputFolder

if TYPE_CHECKING:
    from efficientbench.generation.measuring.measure import Setting
    from efficientbench.metrics.monitoring.measurement import RunMeasurement
    from efficientbench.model.gpt import GPT


# Each of several models, and of several widths of weights, is measured in a process of its own: what it leaves in
# memory, and what is compiled for it, would count in the next one's figures.


def measure_several(
    runs: Sequence[str],
    widths: Sequence[str],
    arguments: Sequence[str],
    options: Sequence[str],
    smoke: bool,
    matrix: Path,
) -> int:
    """Measure one model after another, and print the models with a measured row; return the exit code.

    After Ctrl-C no further model is measured, and the code is `INTERRUPTED`; else it is the first that is not 0.

    Args:
        runs: runs' folders, and names of the matrix.
        widths: the widths of weights, as `--weights` takes them; each model is measured with each.
        arguments: overrides of the configuration, for all names; keys of `quantization` are for quantized weights.
        options: options of `efficientbench generate` for every model, `--measure` among them.
        smoke: whether names stand for scaled-down models; also among `options`.
        matrix: the file in which names are looked up; also among `options`.

    Raises:
        ConfigError: a name or an override is wrong; nothing has been measured.
    """
    quantizations, others = split_widths(widths, arguments)
    found: list[tuple[str, Quantization | None, OutputFolder]] = []
    for run in runs:
        folder = record_folder(run, others, smoke, matrix)
        found += [(run, each, folder.quantized(each)) for each in _in_order(quantizations, folder)]
    codes: list[int] = []
    for run, quantization, _ in found:
        own = () if quantization is None else ("--weights", quantization.weights, *quantization.words)
        codes.append(_exit_code(module_command("efficientbench.cli", "generate", run, *others, *own, *options)))
        if codes[-1] == INTERRUPTED:
            break
    _print([folder for (*_, folder), code in zip(found, codes, strict=False) if code == 0])
    return INTERRUPTED if INTERRUPTED in codes else next(filter(None, codes), 0)


def _in_order(widths: list[Quantization | None], folder: OutputFolder) -> list[Quantization | None]:
    """Return the widths in the order in which a run is measured: backwards in every second repeat.

    A steady drift of the machine then slows all widths of two repeats alike.
    """
    _, repeat, seed = folder.path.name.partition("seed_")
    return widths[::-1] if repeat and seed.isdecimal() and int(seed) % 2 else widths


def _print(folders: Sequence[OutputFolder]) -> None:
    """Print the measurements of these folders, each beside the training whose record lies in its folder."""
    trained = []
    for record in dict.fromkeys(each.of_run.record for each in folders):
        with contextlib.suppress(MetricsError):
            trained.append(read_record(record))
    print_generation(beside([read_generation(folder.generation) for folder in folders], trained), trained, Console())


def _exit_code(command: Sequence[str]) -> int:
    """Run a command to its end. Ctrl-C reaches the command, too, which then writes its rows so far and ends."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            return INTERRUPTED


TRAINING_ONLY = ("cross_entropy", "weight_gradient", "grouped_weight_gradient")
"""The kernels of a model that generation does not use."""

EAGER = "eager, an operation at a time"
COMPILED = "a step by torch.compile, with a graph for each power of two of positions"
# AssertionError: torch 2.13 raises it for nested `with` blocks in the bytecode of Python 3.13.
COMPILING = frozenset({"TorchDynamoException", "FailOnRecompileLimitHit", "AssertionError"})
"""The names of torch's exceptions for a step that it cannot compile, or not for so many lengths."""


@dataclass(frozen=True)
class Target:
    """A model to measure."""

    model: GPT
    config: RunConfig
    weights: str
    """'random', or 'step' and the checkpoint's step."""
    folder: OutputFolder
    """The folder of the record."""
    form: Form | None = None
    """The form of quantized weights; None: they are in the model's dtype."""


@contextlib.contextmanager
def target(
    run: str, arguments: Sequence[str], smoke: bool, step: int | None, matrix: Path, quantization: Quantization | None
) -> Iterator[Target]:
    """Build the model that a command line names: a run's trained model, or one of the matrix with random weights.

    `quantization`: of the linear layers' weights; None: they keep the model's dtype.

    Raises:
        ConfigError: the name's configuration needs several ranks; and see `opened` and `resolve_run`.
        CheckpointError, DataError, DeviceError: see `opened` and `resolve_run`.
    """
    if _is_folder(run):
        folder = record_folder(run, arguments, smoke, matrix).quantized(quantization)
        load_kinds(arguments)
        with opened(Path(run), step, quantization=quantization) as found:
            for problem in found.warnings:
                print_stderr(f"warning: {problem}")
            form = form_here(found.config, quantization, measured=True)
            yield Target(found.model, found.config, f"step {found.step}", folder, form)
        return
    if step is not None:
        raise ConfigError(f"--step: {run} is a run of the matrix with random weights: give the folder of a trained run")
    config, said = _named(run, arguments, smoke, matrix)
    if said:
        print(said)
    form = form_here(config, quantization, measured=True)
    with with_random_weights(config, quantization) as model:
        yield Target(model, in_one_process(config), "random", OutputFolder.of(config).quantized(quantization), form)


def record_folder(run: str, arguments: Sequence[str], smoke: bool, matrix: Path) -> OutputFolder:
    """Return the folder of the record of a run's folder or of a name.

    Raises:
        ConfigError: a folder comes with an option that only names have; a name or an override is wrong; or the
            configuration needs several ranks.
    """
    if not _is_folder(run):
        return OutputFolder.of(_named(run, arguments, smoke, matrix)[0])
    if smoke:
        raise ConfigError(f"--smoke: {run} is a folder, whose model has its size")
    if matrix != MATRIX:
        raise ConfigError(f"--matrix: {run} is a folder with its own model: give a run's name")
    return OutputFolder(Path(run))


def _is_folder(run: str) -> bool:
    return Path(run).is_dir() or len(Path(run).parts) > 1


def _named(run: str, arguments: Sequence[str], smoke: bool, matrix: Path) -> tuple[RunConfig, str | None]:
    """Return the configuration of a run's name, and a line to print about its vocabulary, or None."""
    config, said = resolve_run(run, smoke, arguments, matrix)
    for axis in ("tp", "cp", "pp", "vpp", "ep", "dp"):
        size = getattr(config.parallel, axis)
        if size is not None and size > 1:
            raise ConfigError(
                f"parallel.{axis}={size}: generation is measured in one process on one device: set parallel.{axis}=1"
            )
    return config, said


def measure_run(found: Target, cases: Sequence[Case], repeats: int, compiled: bool = False) -> int:
    """Measure all rows, write the record, print the table; return the exit code, 1 if no row could be measured.

    Raises ConfigError: `compiled` is set for a model with experts, or the folder cannot be written.
    """
    from efficientbench.generation.measuring.measure import Setting

    if compiled and found.config.model.moe is not None:
        raise ConfigError("--compile: which experts get tokens is decided in the step, which has no graph of its own")
    device = find_device(found.config.device, trains=False)
    peak, source = _bandwidth(device)
    setting = Setting(found.model, found.config, device, peak, source, repeats, compiled, found.form)
    book = _Book(found, setting)
    try:
        for case in cases:
            book.add(*_row(setting, case))
    except KeyboardInterrupt:
        if book.rows:
            _print([found.folder])
        return INTERRUPTED
    book.write("completed")
    _print([found.folder])
    print(f"record       {found.folder.generation}")
    return 0 if any(row.failure is None for row in book.rows) else 1


def _bandwidth(device: Device) -> tuple[float | None, str]:
    """Return the device's peak memory bandwidth in bytes/s and its source, or None and why it is not known.

    A host's bandwidth is measured.
    """
    if device.memory_capacity_bytes() is None:
        return generation_plan.memory_bytes_s(), f"measured before the first row: {generation_plan.METHOD}"
    return memory_bandwidth(device.names()[0])


class _Book:
    """The rows so far, and their record."""

    def __init__(self, found: Target, setting: Setting) -> None:
        from efficientbench.model.kernels.names import kernel_names

        self.found, self.setting = found, setting
        self.began_s, self.started_at = time.monotonic(), datetime.now(timezone.utc)
        self.rows: list[GenerationRow] = []
        names = kernel_names(found.config, setting.device.type)
        self.kernels = {part: name for part, name in names.items() if part not in TRAINING_ONLY}
        self.kernels |= {} if found.form is None else {"quantized": found.form.kernel.name}
        self.environment: dict[str, Any] = run_environment(found.config, setting.device)

    def add(self, row: GenerationRow, measured: RunMeasurement | None) -> None:
        """Add a row, and write the record, so that a kill loses no row. The first row moves an earlier record away.

        Raises ConfigError: the folder cannot be written.
        """
        if not self.rows:
            folder = self.found.folder
            try:
                folder.set_aside((GENERATION_NAME,))
            except OSError as error:
                raise folder.unwritable(error) from None
        self.rows.append(row)
        if measured is not None:
            self.environment["sensors"] = sensor_states(measured.sensors)
        self.write("stopped")

    def write(self, status: Literal["completed", "stopped"]) -> None:
        write_generation(self.record(status), self.found.folder.generation)

    def record(self, status: Literal["completed", "stopped"]) -> GenerationRecord:
        """Return the record of the rows so far."""
        from efficientbench.model.cache import Stateful
        from efficientbench.model.quantize import held_bytes, left_out

        config, setting = self.found.config, self.setting
        quantization = None if setting.form is None else setting.form.quantization
        layers = [layer for layer in self.found.model.modules() if isinstance(layer, Stateful)]
        launched = COMPILED if setting.compiled else EAGER
        return GenerationRecord(
            **subject(config),
            devices=1,
            device_name=setting.device.names()[0],
            dtype=config.training.dtype,
            weights=self.found.weights,
            quantization=FULL if quantization is None else quantization.name,
            weight_bytes=held_bytes(setting.model),
            disk_bytes=disk_bytes(config.model, config.training.dtype, quantization),
            decode_path=f"{launched}; attention: {layers[0].decodes_by}",
            steps="compiled" if setting.compiled else "eager",
            status=status,
            started_at=self.started_at.isoformat(timespec="seconds"),
            duration_s=time.monotonic() - self.began_s,
            peak_bytes_s=setting.peak_bytes_s,
            peak_bytes_source=setting.peak_source,
            kernels=self.kernels,
            left_out={} if setting.form is None else left_out(setting.model),
            rows=self.rows,
            config=config.model_dump(mode="json"),
            environment=self.environment,
        )


def _row(setting: Setting, case: Case) -> tuple[GenerationRow, RunMeasurement | None]:
    """Measure a row; return it, or a row that says why it cannot be measured."""
    from efficientbench.generation.measuring.measure import measure

    config, usable = setting.config, usable_bytes(setting.device)
    reason = too_large(config, case, usable, setting.form)
    try:
        if reason is None:
            check_lengths(config.model, [range(case.prompt_tokens)], case.max_new_tokens)
            return measure(setting, case)
    except (ConfigError, GenerationError) as error:
        reason = str(error)
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        if ran_out_of_memory(error):
            hint = batch_that_fits(config, case, usable, setting.form)
            reason = f"out of memory at batch {case.batch:,}: {first_line}; {hint}"
        elif setting.compiled and not COMPILING.isdisjoint(each.__name__ for each in type(error).__mro__):
            reason = f"torch.compile failed: {first_line}"
        else:
            raise
    failed = GenerationRow(
        prompt_tokens=case.prompt_tokens, batch=case.batch, max_new_tokens=case.max_new_tokens, failure=reason
    )
    return failed, None
