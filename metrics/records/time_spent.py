"""The wall time of a run, by what it was spent on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

NOT_TIMED = "neither the training loop nor a checkpoint that it resumed from says where the wall time went"
"""Why the parts are absent."""


@dataclass(frozen=True)
class TimeSpent:
    """The wall time of all attempts of a run by what it went to, s: each moment counts for one part."""

    start_s: float
    """Set-up of the first attempt, up to its first step."""
    first_steps_s: float
    """What each attempt's first steps took beyond the median of later ones."""
    productive_s: float
    """All else of the steps, and the answers that reinforcement learning samples before them."""
    data_wait_s: float
    """In which the device had nothing to do but to wait for the next micro-batch."""
    evaluation_s: float
    """Validations, evaluations and rechecks."""
    checkpoints_s: float
    """In which training stood still for a checkpoint."""
    restarts_s: float
    """Set-up of later attempts, and what the one before worked after the checkpoint that they resume from."""
    rest_s: float
    """Between steps: logs, reports, clean-up."""

    @property
    def wall_s(self) -> float:
        """Return the sum of all parts."""
        return math.fsum(asdict(self).values())

    @property
    def goodput(self) -> float:
        """Return the productive share."""
        return self.productive_s / self.wall_s
