"""The job that the parent process hands to every rank, as a file: what all kinds share, and that of pretraining."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import TypeAdapter

from efficientbench.architecture.registry import load_named
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.config.budget import Budget
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.files import write_whole

if TYPE_CHECKING:
    from typing_extensions import Self


class AnyJob(ABC):
    """One run, ready to start: everything that a rank needs besides its own number. Its ranks read it from a file."""

    memory_advice: ClassVar[str]
    """What helps when memory runs out."""
    config: Any
    output: Path
    """The run's folder."""

    @property
    @abstractmethod
    def cache(self) -> Path:
        """The folder of text and what is computed from it, which the run writes to besides `output`."""

    @property
    @abstractmethod
    def ranks_per_node(self) -> int:
        """The number of ranks on each node."""

    def write(self, path: Path) -> None:
        """Write the job as JSON. Raises MetricsError: the file cannot be written."""
        write_whole(path, TypeAdapter(type(self)).dump_json(self, indent=2).decode())


@dataclass(frozen=True)
class Job(AnyJob):
    """The job of pretraining, SFT or RL."""

    memory_advice = "a smaller training.micro_batch_size, training.recompute=full or more ranks would help"

    config: RunConfig
    layout: Layout
    budget: Budget
    corpora: tuple[Path, ...]
    """The absolute path of each source's manifest, in the order of `config.data.sources`."""
    output: Path
    resume: Path | None = None
    """The checkpoint to resume from; None: start at step 1. The first node's job decides for all."""
    trial: bool = False
    """Whether the ranks only try if the run fits in memory: a few steps on random tokens, without a record."""
    tokenizer_fingerprint: str | None = None
    """`TextTokenizer.fingerprint` of the tokenizer that made the tokens; None in the jobs of earlier versions."""
    imported: str | None = None
    """Name and class of the model whose weights were imported; None: they were trained."""

    @property
    def cache(self) -> Path:
        return Path(self.config.data.cache)

    @property
    def ranks_per_node(self) -> int:
        return self.layout.ranks_per_node

    @classmethod
    def read(cls, path: Path, trusted: bool = False) -> Self:
        """Read a job that `write` has written.

        Args:
            path: the file.
            trusted: import variants from outside this project that the job names, since this user's command wrote it.

        Raises:
            OSError: as `read_whole`.
            ValueError: the file is something else, or names a variant that is not loaded.
            ConfigError: a variant cannot be loaded.
        """
        content = read_whole(path)
        if trusted:
            load_named(parse_json(content)["config"])
        return TypeAdapter(cls).validate_json(content)
