"""What jobs of pretraining and of fine-tuning have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from efficientbench.metrics.files import write_whole


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
