"""The named fine-tunings of finetuning.yaml in experiments/: every method in every size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from efficientbench.basics.part import Name, Part
from efficientbench.config.matrix import EXPERIMENTS, Overlay, load_yaml

RUNS = EXPERIMENTS / "finetuning.yaml"


class Tunings(Part):
    """The content of finetuning.yaml."""

    sizes: dict[Name, Overlay]
    methods: dict[Name, Annotated[Overlay, BeforeValidator(lambda value: value or {})]]
    smoke: Overlay


class TuningName(NamedTuple):
    """The method and size of a named fine-tuning."""

    method: str
    size: str

    @property
    def name(self) -> str:
        """The run's name: `<method>_<size>`."""
        return f"{self.method}_{self.size}"


def named_tunings(path: Path = RUNS) -> dict[str, TuningName]:
    """Return all runs of finetuning.yaml by name, in the order of the file."""
    runs: Tunings = load_yaml(path, Tunings)
    found = [TuningName(method, size) for method in runs.methods for size in runs.sizes]
    return {each.name: each for each in found}
