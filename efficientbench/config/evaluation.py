"""Keys of evaluation while a model is trained."""

from __future__ import annotations

from pydantic import Field, model_validator

from efficientbench.basics.part import NonNegativeInt, Part, PositiveInt


class EvaluationConfig(Part):
    """Evaluation while the model is trained."""

    core_every: NonNegativeInt = Field(default=0, description="steps between evaluations of CORE; 0: none")
    core_data: str | None = Field(
        default=None, description="folder of CORE's evaluation bundle, or one that holds it as core/"
    )
    core_limit: PositiveInt = Field(
        default=100, description="rows of each task, at most; more than a task's shots, of which 10 are the most"
    )

    @model_validator(mode="after")
    def _has_data(self) -> EvaluationConfig:
        if self.core_every and self.core_data is None:
            raise ValueError("evaluation.core_data: missing: the folder of the bundle that core_every evaluates")
        return self
