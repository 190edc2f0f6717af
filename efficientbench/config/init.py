"""The initial weights of a run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from efficientbench.basics.part import NonNegativeInt, Part


class InitConfig(Part):
    """Initial weights from another run's checkpoint. All other state of the run starts fresh."""

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

    @model_validator(mode="after")
    def _of_a_run(self) -> InitConfig:
        for key in ("step", "sha256"):
            if self.run is None and getattr(self, key) is not None:
                raise ValueError(f"{key} is that of a checkpoint of init.run, which is not set")
        return self
