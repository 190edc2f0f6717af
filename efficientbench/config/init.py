"""The state with which a run begins, where that is another run's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from efficientbench.basics.part import NonNegativeInt, Part


class InitConfig(Part):
    """Weights from another run's checkpoint, or all of its state, which the run then continues as a branch."""

    run: str | None = Field(
        default=None,
        description="folder of a run of the same model and tokenizer, of any layout and dtype, with whose weights this "
        "one begins; unset: random weights",
    )
    step: NonNegativeInt | None = Field(
        default=None, description="its checkpoint; unset: the newest, whose step the record then has"
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="SHA-256 of that checkpoint's manifest.json, which has those of its files; unset: any, and the "
        "record then has it",
    )
    state: Literal["weights", "everything"] | None = Field(
        default=None,
        description="what the run takes from that checkpoint; weights: all else is new; everything: also moments, "
        "random generators, order and position in the text, and its steps count on; unset: weights",
    )

    @model_validator(mode="after")
    def _of_a_run(self) -> InitConfig:
        for key in ("step", "sha256", "state"):
            if self.run is None and getattr(self, key) is not None:
                raise ValueError(f"{key} is that of a checkpoint of init.run, which is not set")
        return self

    @property
    def branches(self) -> bool:
        """Whether the run continues all state of another one."""
        return self.state == "everything"
