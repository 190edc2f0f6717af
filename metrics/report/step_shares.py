"""The shares of a step's time by kind of work, as `efficientbench profile` found them in a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationError

from efficientbench.basics.foreign import plain_text, read_whole
from efficientbench.metrics.files import write_whole

NAME = "step_shares.json"
FOLDER = "profile"
"""Of a run's folder: the run that was traced."""


class StepShares(BaseModel):
    """The time of the traced steps."""

    model_config = ConfigDict(allow_inf_nan=False)
    steps: int = Field(ge=1)
    step_time_s: PositiveFloat
    """Mean of the traced steps, which tracing makes longer."""
    seconds: dict[str, NonNegativeFloat]
    """Kind of work → seconds a step."""
    on_device: bool
    """Whether the times are those of an accelerator's kernels; else of the training thread's operations."""


@dataclass(frozen=True)
class Profiled:
    """The shares of one run."""

    run: str
    """Its folder, relative to the reported one."""
    shares: StepShares


def write_step_shares(shares: StepShares, folder: Path) -> None:
    """Write the shares into the folder of a traced run. Raises MetricsError where the file cannot be written."""
    write_whole(folder / NAME, shares.model_dump_json(indent=2) + "\n")


def load_step_shares(folder: Path) -> tuple[list[Profiled], list[str]]:
    """Return the shares of the traced runs below a folder, and a message for each file that cannot be read."""
    found, damaged = [], []
    for path in sorted(folder.rglob(f"{FOLDER}/{NAME}")):
        if "previous" in path.relative_to(folder).parts:
            continue
        run = path.parent.parent
        try:
            shares = StepShares.model_validate_json(read_whole(path))
        except (OSError, ValidationError) as error:
            problem = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
            damaged.append(plain_text(f"{path}: cannot be read ({problem})"))
            continue
        name = folder.name if run == folder else str(run.relative_to(folder))
        found.append(Profiled(plain_text(name), shares))
    return found, damaged
