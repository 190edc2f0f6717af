"""The base class of all parts of a configuration, and the types of their fields."""

from __future__ import annotations

import reprlib
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_serializer,
)

if TYPE_CHECKING:
    from typing_extensions import Self

LARGEST = 2**63 - 1
"""Largest integer in a configuration; figures derived from larger ones may be too large to compute."""


def _not_too_large(number: int) -> int:
    if number > LARGEST:
        raise ValueError(f"{reprlib.repr(number)} is above {LARGEST:,}, the largest whole number here")
    return number


PositiveInt = Annotated[int, Field(ge=1), AfterValidator(_not_too_large)]
NonNegativeInt = Annotated[int, Field(ge=0), AfterValidator(_not_too_large)]
AUTO = 0
"""A micro-batch that is not chosen yet, written `auto`."""
MicroBatch = Annotated[
    PositiveInt,
    WrapValidator(lambda given, validated: AUTO if given == "auto" else validated(given)),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
"""Sequences in a micro-batch, or `auto`."""
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
"""A time to wait in seconds, below the limit of timers that count nanoseconds in 64 bits."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
"""A name that becomes a folder. Without separators and leading dots it cannot leave its parent."""
MOST_LABEL = 100
"""Most characters of a label: a folder's name with the longest variant and size stays below file systems' 255."""
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._+=~-]*[A-Za-z0-9])?$", max_length=MOST_LABEL)]
"""Text that can be part of a folder's name."""

Prometheus = Annotated[
    str | None,
    BeforeValidator(lambda given: str(given) if type(given) is int else given),
    Field(
        description="port at which Prometheus reads the run, as 9400 or HOST:9400, or the folder of node_exporter's "
        "textfile collector; unset: none"
    ),
]
"""A port or a folder."""
Meters = Annotated[
    tuple[str, ...] | None,
    BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given),
    Field(
        description="meters of a socket, a PDU or a rack to read beside the devices' own sensors, with commas: "
        "package.module:NAME or an installed one's name, imported because your command names it; unset: none"
    ),
]
"""Names of meters, in text with commas between them."""


def _tokens(given: object) -> int | str | None:
    """Parse a number of tokens, or of tokens per parameter: '20x'."""
    if given is None:
        return None
    text = str(given).strip()
    with suppress(ValueError):
        if text.endswith("x") and 0 < float(text[:-1]) <= LARGEST:
            return text
        if not isinstance(given, bool) and 0 < int(text) <= LARGEST:
            return int(text)
    raise ValueError(
        f"{reprlib.repr(given)} is neither a number of tokens above 0 nor of tokens per parameter, like 20x"
    )


Tokens = Annotated[
    int | str | None,
    PlainValidator(_tokens),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}),
]
"""Tokens, or tokens per parameter as text like '20x'."""


class Part(BaseModel):
    """A frozen part of a configuration that refuses unknown keys, infinities and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def changed(self, part: str, /, **values: Any) -> Self:
        """Return a copy with other values in one part; as in `model_copy`, nothing is validated."""
        return self.model_copy(update={part: getattr(self, part).model_copy(update=values)})


class GrownPart(Part):
    """A part that got keys after the first runs."""

    later_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that came later: where they have their default a record leaves them out, and is what it was."""

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave later keys out where they have their default; false is as good as unset."""
        return {key: value for key, value in handler(self).items() if key not in self.later_keys or self._set(key)}

    def _set(self, key: str) -> bool:
        value, default = getattr(self, key), type(self).model_fields[key].default
        return bool(value != default and not (default is None and value is False))


def require(*rules: tuple[bool, str]) -> None:
    """Raise ValueError with the message of the first rule that does not hold."""
    for holds, message in rules:
        if not holds:
            raise ValueError(message)
