"""How many bits the weights of linear layers get for generation and evaluation: `--weights`, and `quantization.*`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationError

from efficientbench.basics.errors import ConfigError, did_you_mean
from efficientbench.basics.part import Part, PositiveInt

WIDTHS = {"int8": 8, "int4": 4, "fp8": 8, "bf16": 16, "fp16": 16}
"""Name of a width → bits of a weight."""
FULL = "none"
"""The word of `--weights` for weights in the model's own dtype."""
PREFIX = "quantization."


class Quantization(Part):
    """Rounding of the linear layers' weights to the nearest of few values, after loading."""

    weights: Literal["int8", "int4", "fp8", "bf16", "fp16"] = Field(description="width of a weight")
    group: PositiveInt | None = Field(
        default=None, description="weights of a row that share a scale; unset: 128 with int4, else the whole row"
    )
    symmetric: bool = Field(
        default=True,
        description="the values are as far below zero as above; false: each group has an offset of its own",
    )

    @property
    def row_group(self) -> int | None:
        """Return how many weights of a row share a scale; None: the whole row."""
        return 128 if self.group is None and self.weights == "int4" else self.group

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of a command line, beside `--weights`, that set what is no default."""
        given = self.model_dump(exclude={"weights"}, exclude_defaults=True)
        return tuple(f"{PREFIX}{key}={value}" for key, value in given.items())

    @property
    def name(self) -> str:
        """Return the name of the folder of its results, and of it in tables: int4_g128."""
        group = [] if self.row_group is None else [f"g{self.row_group}"]
        return "_".join([self.weights, *group, *([] if self.symmetric else ["asymmetric"])])


def split_quantization(weights: str | None, arguments: Sequence[str]) -> tuple[Quantization | None, list[str]]:
    """Return what one width asks for, as `split_widths`; None: the full width. Raises ConfigError: as there."""
    if weights is not None and "," in weights:
        raise ConfigError(f"--weights: {weights[:80]!r} is a list, which only generate --measure takes: name one width")
    [quantization], others = split_widths([weights or FULL], arguments)
    return quantization, others


def split_widths(widths: Sequence[str], arguments: Sequence[str]) -> tuple[list[Quantization | None], list[str]]:
    """Return what each width of `--weights` asks for with the keys among the arguments, and the other arguments.

    None stands for the full width, which takes no keys. Raises ConfigError: a key or a value is wrong, or keys come
    without a width that rounds.
    """
    own = [each for each in arguments if each.startswith(PREFIX)]
    if own and not set(widths) - {FULL}:
        raise ConfigError(f"{own[0]}: goes with --weights {' or '.join(WIDTHS)}, which round weights")
    return [_quantization(each, own) for each in widths], [each for each in arguments if each not in own]


def _quantization(weights: str, keys: Sequence[str]) -> Quantization | None:
    if weights == FULL:
        return None
    if weights not in WIDTHS:
        hint = did_you_mean(weights, (*WIDTHS, FULL), f"give {', '.join(WIDTHS)} or {FULL}")
        raise ConfigError(f"--weights: there is no width {weights[:80]!r}: {hint}")
    given = {key.removeprefix(PREFIX): value for key, _, value in (each.partition("=") for each in keys)}
    if "weights" in given:
        raise ConfigError(f"{PREFIX}weights: --weights gives the width: {weights}")
    try:
        return Quantization.model_validate({**given, "weights": weights})
    except ValidationError as error:
        unknown = "no such key; there are group, symmetric"
        found = (
            (".".join(map(str, each["loc"])), unknown if each["type"] == "extra_forbidden" else each["msg"])
            for each in error.errors()
        )
        raise ConfigError([f"{PREFIX}{key}: {why}" for key, why in found]) from None
