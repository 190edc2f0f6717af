"""The configuration of a curriculum: levels of difficulty, the score that decides them, the pace, the baselines."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from efficientbench.basics.part import Fraction, NonNegativeInt, Part, require

Score = Literal["label", "length", "steps", "loss"]
Pace = Literal["staged", "competence", "sorted"]
Order = Literal["paced", "shuffled", "random", "reversed", "random_levels"]


class Stage(Part):
    """A part of the run with one mixture of levels."""

    end: Annotated[float, Field(gt=0, le=1)] = Field(description="share of the run's steps after which the stage ends")
    mixture: tuple[Fraction, ...] = Field(description="share of each level in the stage's samples; their sum is 1")


DEFAULT_STAGES = (
    Stage(end=0.3, mixture=(0.8, 0.2, 0.0)),
    Stage(end=0.7, mixture=(0.4, 0.4, 0.2)),
    Stage(end=1.0, mixture=(0.25, 0.35, 0.4)),
)


class CurriculumConfig(Part):
    """The order in which a run sees its samples."""

    use: Literal["auto", "required", "off"] = Field(
        default="auto",
        description="auto: a curriculum where the data allows one, else a random order, with the reason in the record; "
        "required: an error where it does not; off: a random order",
    )
    score: Score = Field(
        default="label",
        description="what difficulty is; label: a column of the data; length: the answer's tokens; steps: its steps of "
        "reasoning; loss: refused: `finetune losses` writes the base model's losses as a column, which `label` reads",
    )
    field: str = Field(default="difficulty", description="column that holds the label: a level's name or a number")
    levels: tuple[str, ...] = Field(
        default=("explain", "reasoning", "topology"),
        description="names of the levels, easiest first; numbers are cut into as many levels of equal size",
    )
    pace: Pace = Field(
        default="staged",
        description="staged: the mixtures of `stages`; competence: the easiest share of the samples, which grows with "
        "the root of the steps (Platanios 2019); sorted: each pass from easy to hard",
    )
    stages: tuple[Stage, ...] = Field(default=DEFAULT_STAGES, description="parts of a staged run, in order")
    start: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.01, description="share of the samples that the competence pace begins with"
    )
    order: Order = Field(
        default="paced",
        description="paced: the curriculum; its baselines are shuffled: the same samples, as often, in random order; "
        "random: passes over all samples; reversed: the curriculum's steps backwards; random_levels: the curriculum of "
        "permuted difficulties",
    )
    unlabelled: Literal["error", "drop", "easiest"] = Field(
        default="error", description="what becomes of samples without a known level, where others have one"
    )
    seed: NonNegativeInt = Field(default=42, description="of the order")

    @model_validator(mode="after")
    def _levels_and_stages_fit(self) -> CurriculumConfig:
        """Check the levels' names and the stages' ends and mixtures."""
        names = f"{len(self.levels)} levels ({', '.join(self.levels)})"
        require(
            (len(self.levels) >= 2, f"levels: a curriculum has at least 2, not {len(self.levels)}"),
            (len(set(self.levels)) == len(self.levels), f"levels: {', '.join(self.levels)}: each name once"),
            (len(self.stages) > 0, "stages: at least one"),
        )
        ends = [stage.end for stage in self.stages]
        require(
            (ends == sorted(set(ends)), f"stages: ends {ends} do not ascend"),
            (ends[-1] == 1, f"stages: the last one ends at {ends[-1]:g}, not at 1"),
        )
        for number, stage in enumerate(self.stages, 1):
            total = math.fsum(stage.mixture)
            require(
                (
                    len(stage.mixture) == len(self.levels),
                    f"stages: stage {number} has {len(stage.mixture)} shares for {names}",
                ),
                (abs(total - 1) < 1e-9, f"stages: the shares of stage {number} add up to {total:g}, not to 1"),
            )
        return self
