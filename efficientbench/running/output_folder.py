"""The folder of a run: the paths of its files, and the lock that lets one run write there at a time."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import complete_folder, no_link, write_file
from efficientbench.basics.foreign import read_whole
from efficientbench.config.quantization import Quantization

if TYPE_CHECKING:
    from typing_extensions import Self

HELD_OUT_LOSSES = "held_out_losses.npz"
"""File of a fine-tuning's held-out losses."""
WRITTEN = (
    *("checkpoint", "steps.jsonl", HELD_OUT_LOSSES, "config.json", "tensorboard", "log", "tokenizer"),
    *("evaluation", "wandb", "trace.json.gz", "step_shares.json", "adapter", "model", "deepspeed.json"),
    *("quantized", "generation.json", "shared.zip", "record.json"),
)
"""Files and folders of a run, over all its attempts, in the order in which `set_aside` moves them. After a kill in
between, no checkpoint is left to resume from, and the record of a complete run still says that it is complete."""


class Settings(Protocol):
    """What the parent process reads of a configuration, of pretraining or fine-tuning."""

    device: str
    output: str
    wandb: str | None
    prometheus: str | None
    training: Any
    faults: Any
    measurement: Any

    @property
    def name(self) -> str: ...
    def changed(self, part: str, /, **values: Any) -> Self: ...


class OutputFolder:
    """`<suite>/<variant>_<size>/` with the record, the steps, TensorBoard's files, logs, checkpoints and tokenizer."""

    def __init__(self, path: Path, key: str = "output") -> None:
        self.path = path
        self.key = key
        """The key of the configuration whose folder it is in."""
        self.record = path / "record.json"
        self.failure = path / "failure.json"
        """Why the last attempt ended early; absent while an attempt runs, and after one that reached its last step."""
        self.steps = path / "steps.jsonl"
        self.config = path / "config.json"
        self.tensorboard = path / "tensorboard"
        self.log = path / "log"
        self.tokenizer = path / "tokenizer"
        """A copy of the tokenizer that made the run's tokens, so that the checkpoints serve without the corpus."""
        self.trace = path / "trace.json.gz"
        self.generation = path / "generation.json"
        """The cost of generation, as `generate --measure` has measured it."""
        self.shared = path / "shared.zip"
        """What `share` has packed."""

    @classmethod
    def of(cls, config: Settings) -> OutputFolder:
        """Return the folder of a run, below the suite's."""
        return cls(Path(config.output).absolute() / config.name)

    @classmethod
    def of_repeat(cls, config: Settings) -> OutputFolder:
        """Return the folder of one repeat of a run, below the run's."""
        return cls(cls.of(config).path / f"seed_{config.training.seed}")

    def quantized(self, quantization: Quantization | None) -> OutputFolder:
        """Return the folder of what was measured and evaluated with quantized weights; None: this folder."""
        return self if quantization is None else OutputFolder(self.path / "quantized" / quantization.name)

    @property
    def of_run(self) -> OutputFolder:
        """The run's folder, also where this is one of `quantized`."""
        return OutputFolder(self.path.parents[1]) if self.path.parent.name == "quantized" else self

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder, and lock it while the block runs.

        Raises:
            ConfigError: the folder cannot be written, or another run holds it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Unbuffered: on a full disk, closing the file must not fail on a buffered write.
            lock = open(self.path / "lock", "a+b", buffering=0, opener=no_link)  # noqa: SIM115, held while the run lasts
        except OSError as error:
            raise self.unwritable(error) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                holder = lock.read().decode(errors="replace").strip() or "unknown"
                work = " (of a speedrun: --work FOLDER)" if self.key == "output" else ""
                raise ConfigError(
                    f"{self.key}: {self.path} is in use by another run (process {holder}); wait for it, or choose "
                    f"another folder with {self.key}=FOLDER{work}"
                ) from None
            try:
                lock.truncate(0)
                lock.write(str(os.getpid()).encode())
            except OSError as error:
                raise self.unwritable(error) from None
            yield

    def unwritable(self, error: OSError) -> ConfigError:
        """Return the error for a folder that cannot be written."""
        return ConfigError(f"{self.key}: {self.path} cannot be written: {error.strerror}")

    def keep_tokenizer(self, tokenizer: Path) -> None:
        """Copy the tokenizer of the run's corpora, unless an earlier attempt has done so.

        Raises:
            ConfigError: the folder cannot be written, or a file of the tokenizer cannot be read.
        """
        if self.tokenizer.is_dir():
            return
        try:
            contents = {path.name: read_whole(path) for path in tokenizer.iterdir()}
        except OSError as error:
            raise ConfigError(f"tokenizer: {error.filename}: cannot be read: {error.strerror}") from None
        try:
            with complete_folder(self.tokenizer) as partial:
                for name, content in contents.items():
                    write_file(partial / name, content)
        except OSError as error:
            raise self.unwritable(error) from None

    def set_aside(self, names: Sequence[str] = WRITTEN) -> None:
        """Move what an earlier run, or an earlier command, wrote under these names to `previous/<time>/`."""
        found = [self.path / name for name in names if (self.path / name).exists()]
        if not found:
            return
        now = datetime.datetime.now(datetime.timezone.utc)
        aside = self.path / "previous" / f"{now:%Y%m%dT%H%M%S.%fZ}"
        aside.mkdir(parents=True)
        for path in found:
            path.rename(aside / path.name)
