"""Defines the parts of a run's record that hold more than one figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from efficientbench.metrics.formulas.student import half_interval_95
from efficientbench.metrics.records.figure import Few, Positive

NOT_TIMED = "neither the training loop nor a checkpoint that it resumed from says where the wall time went"
"""Why the parts of the wall time are absent."""


@dataclass(frozen=True)
class TimeSpent:
    """The parts of the wall time of all attempts of a run, s: each moment counts for one part."""

    start_s: float
    """Set-up of the first attempt, up to its first step."""
    first_steps_s: float
    """Time that each attempt's first steps took beyond the median of later ones."""
    productive_s: float
    """The rest of the steps' time, and the sampling of reinforcement learning's rollouts before them."""
    data_wait_s: float
    """Time in which the device had nothing to do but to wait for the next micro-batch."""
    evaluation_s: float
    """Validations, evaluations and rechecks."""
    checkpoints_s: float
    """Time in which training waited for a checkpoint."""
    restarts_s: float
    """Set-up of later attempts, and earlier attempts' work after the checkpoint from which the next one resumed."""
    rest_s: float
    """Time between steps: logs, reports, clean-up."""

    @staticmethod
    def first_steps_apart(
        seconds: Mapping[str, float], first_s: Sequence[float], later_s: Sequence[float]
    ) -> dict[str, float]:
        """Return the seconds by part; what first steps took beyond the median of later ones is a part of its own."""
        usual_s = statistics.median(later_s or first_s or [0.0])
        excess_s = sum(max(0.0, time_s - usual_s) for time_s in first_s)
        productive_s, first_steps_s = seconds["productive_s"] - excess_s, seconds["first_steps_s"] + excess_s
        return {**seconds, "productive_s": productive_s, "first_steps_s": first_steps_s}

    @property
    def wall_s(self) -> float:
        """Return the sum of all parts."""
        return math.fsum(asdict(self).values())

    @property
    def goodput(self) -> float:
        """Return the productive share of the wall time."""
        return self.productive_s / self.wall_s


@dataclass(frozen=True)
class ExpertLoad:
    """The tokens that the experts of a mixture got in the measured window."""

    tokens_per_expert: list[Annotated[list[int], Field(min_length=1)]]
    """[layers][experts], over all ranks; a token counts once for each expert that it goes to."""
    load_imbalance: list[float]
    """[layers]: tokens of the busiest expert over the mean of the layer's experts."""


@dataclass(frozen=True)
class Window:
    """A measured interval, s, counted from the opening of the first one."""

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Outlier:
    """A step that took much longer than the median."""

    step: int
    """Counted from 1 since the start of the run, warm-up included."""
    step_time_s: float
    times_median: float
    """Its time over the median of all measured steps."""
    cause: str | None
    """What is known to have happened at that step; None where nothing is."""


@dataclass(frozen=True)
class SlowPart:
    """A device or a link that took longer than the others before the first step."""

    what: str
    """Its node and device, or those at both ends of a link, from the sender."""
    times_others: float
    """Its time over the median of the others, as the median of all rounds has it."""


@dataclass(frozen=True)
class Preflight:
    """How devices and links compared before the first step of a run on several nodes."""

    time_s: float
    """How long they were measured; where something was slow, twice."""
    rounds: int
    devices: int
    links: int
    """Links that were measured, each direction on its own."""
    slow: list[SlowPart]
    """The slow ones, the slowest first."""


@dataclass(frozen=True)
class Mismatch:
    """A rank that computed other bits the second time, and before any rank that it sends to: its device is suspected.

    Ranks that found the first difference at the same place are all named.
    """

    step: int
    """After which a micro-batch was computed twice."""
    rank: int
    device: str
    """Host and device of the rank."""
    where: str
    """What differed first."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} ({self.device}) computed {self.where} twice after step {self.step}, with different "
            "bits: its hardware, or a kernel, is not to be trusted"
        )


@dataclass(frozen=True)
class Rechecks:
    """Micro-batches that every rank computed twice, and whose bits were compared."""

    count: Few
    mismatched: Few
    """Those of `count` in which bits differed."""
    mismatches: list[Mismatch]
    """Of the first ones, at most MOST_MISMATCHES."""


MOST_MISMATCHES = 100
"""The largest number of mismatches that a record lists."""


@dataclass(frozen=True)
class QualityPoint:
    """A validation, and the cost of the training before it."""

    step: int
    tokens: Positive
    """Trained on since the start, warm-up included."""
    loss: float | None
    """Mean over the validation's tokens, nats; None where it is no finite number."""
    loss_se: float | None
    """Standard error of the loss, from the spread over the validation's documents; None for a single one."""
    measured_tokens: int
    """Those of `tokens` that were trained on in measured steps."""
    train_s: float
    """Σ synchronized times of the measured steps: without warm-up, evaluation, checkpoints and set-up."""
    energy_j: float | None
    """Energy of the measured steps; None where no sensor measures it (`unavailable` has the reason, as energy_j)."""
    loss_se_values: Few | None = None
    """Batches, or repeats, over which `loss_se` is the spread; None where it is not known."""

    @property
    def loss_margin(self) -> float:
        """Half of the loss's 95 % Student-t interval, nats; 0 where its spread is not known."""
        return half_interval_95(self.loss_se, self.loss_se_values) or 0.0


@dataclass(frozen=True)
class DataSource:
    """A tokenized corpus that the run read."""

    source: str
    """Where the text came from, for people."""
    weight: float
    """Share of the run's samples that were drawn from it; the sources' shares sum to 1."""
    documents: int
    tokens: int
    fingerprint: str
    """SHA-256 of the tokens and their index: two runs with the same fingerprints and weights read the same data."""
    tokenizer_fingerprint: str
    """SHA-256 of everything that decides the tokenizer's ids."""
    duplicates: int | None = None
    """Documents that the validation left out because their text occurs more than once, so that it is trained on; None
    where it is not known."""
    too_long: int | None = None
    """Conversations for training that were left out because no sequence can hold them; None of text."""
    verified: Literal["whole", "blocks read"] | None = None
    """What the run held against the checksums of the corpus: every file whole (at its start, or at an earlier one since
    which none changed its size, times or inode), or of its tokens each block that was read, and all other files whole.
    None: nothing, as in records of earlier versions."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with one optimizer and one learning rate."""

    role: str
    """'matrices' of the layers, 'embedding', 'head' for an output projection with a table of its own, 'others'."""
    optimizer: str
    learning_rate: PositiveFloat
    """At the peak of the schedule."""
    parameters: list[str]
    """Names, with `*` for a layer's number."""


@dataclass(frozen=True)
class PhaseCost:
    """What one phase of the measured steps cost, over all ranks."""

    time_s: float
    """Σ synchronized times."""
    tokens: int
    """That it computed: rollouts those of the answers, updates with what fills up their sequences."""
    energy_j: float | None
    """None where no sensor measures it: `energy_unavailable` has the reason."""
    energy_unavailable: str | None = None
    """Why there is no energy; None where there is, and in records older than this field."""

    @classmethod
    def of_repeats(cls, costs: Sequence[PhaseCost | None]) -> PhaseCost | None:
        """Return the mean cost over repeats; None if a repeat has no cost, and without energy if a repeat has none."""
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            return None
        tokens = round(sum(cost.tokens for cost in known) / len(known))
        time_s = math.fsum(cost.time_s for cost in known) / len(known)
        reason = next((cost.energy_unavailable for cost in known if cost.energy_j is None), None)
        return cls(time_s, tokens, _mean([cost.energy_j for cost in known]), reason)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where a value is missing."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class TrainingScore:
    """What a model made of a task at one step of its training."""

    task: str
    step: Few
    figures: dict[str, Annotated[float, Field(allow_inf_nan=False)] | None]
    """By their names; None for one that could not be computed."""


@dataclass(frozen=True)
class Reinforcement:
    """What a run learned from: its own answers to questions. Counts are of all attempts, costs of the last one."""

    questions: Few
    """Asked in all steps; the same one in another epoch counts again."""
    without_signal: Few
    """Those whose answers all had the same reward, so that nothing was learned from them."""
    too_long: Few
    """Questions of the task that left no room for an answer, and were never asked."""
    reward_first: float | None
    """Mean reward in the first ten steps; None where no step was trained."""
    reward_last: float | None
    """In the last ten."""
    rollouts: PhaseCost | None
    """Sampling and rewards, before each measured step; None where no step was measured."""
    updates: PhaseCost | None
    """The measured steps themselves, of which alone are all other figures of the record."""
    files_sha256: list[str]
    """Of the questions' rows, and of the code of a task from outside this project."""

    @classmethod
    def of_repeats(cls, repeats: Sequence[Reinforcement]) -> Reinforcement:
        """Return the questions of all repeats together, and the means of their rewards and costs."""
        return replace(
            repeats[0],
            questions=sum(each.questions for each in repeats),
            without_signal=sum(each.without_signal for each in repeats),
            reward_first=_mean([each.reward_first for each in repeats]),
            reward_last=_mean([each.reward_last for each in repeats]),
            rollouts=PhaseCost.of_repeats([each.rollouts for each in repeats]),
            updates=PhaseCost.of_repeats([each.updates for each in repeats]),
        )
