"""What every piece of configuration is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
# A time to wait: timers count nanoseconds in 64 bits.
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Fraction = Annotated[float, Field(ge=0, le=1)]
# A name becomes a folder: it starts with a letter or digit and holds no separator, so it cannot leave its parent.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]


class Part(BaseModel):
    """A frozen piece of configuration that refuses unknown keys, infinities and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
