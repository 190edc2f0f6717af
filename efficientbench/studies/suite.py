"""The section `study` of a matrix of one's own, and the mistakes in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from efficientbench.basics.errors import ConfigError, did_you_mean
from efficientbench.basics.part import Name, Part, PositiveFloat, PositiveInt
from efficientbench.config.matrix import load_matrix
from efficientbench.studies.ladder import LEAST_BUDGETS, LEAST_SIZES

REACH = 10
"""How many times larger than the largest size a target may be."""
Match = Literal["flops", "parameters", "active", "none"]
Ratio = Annotated[PositiveFloat, Field(le=100_000)]
"""Tokens per parameter."""
SEARCHED = "{at: [50M, 125M], start: 3.0e-3}"
FIXED = "the rate of each variant and size: {gqa: {50M: 3.0e-3}}"
RATES = f"{SEARCHED}, or {FIXED}"

PARTS = "variants, sizes and target"
MISSING = {
    "sizes": "are missing: name 3 or more in the file, or say with --budget HOURS what they may take",
    "target": "is missing: what to decide, like --target 1.5B@20x",
}
"""Key → what to do where it is not given."""


class Target(Part):
    """The training that the study is to decide."""

    size: Name
    tokens_per_parameter: Ratio = 20.0


class Search(Part):
    """Where learning rates are searched."""

    at: tuple[Name, Name] | None = None
    """The two sizes; None: the two smallest."""
    start: PositiveFloat = 3e-3
    """The rate in the middle of the first search, unless a variant of the matrix has one."""


class StudySection(Part):
    """What a study compares, in which ladder, and for which target. Sizes and tokens are the baseline's."""

    variants: tuple[Name, ...]
    baseline: Name
    sizes: tuple[Name, ...]
    tokens_per_parameter: tuple[Ratio, ...] = (10.0, 20.0, 40.0)
    seeds: Annotated[PositiveInt, Field(le=100)] = 3
    target: Target
    match: Match = "flops"
    trunks: bool = True
    """Whether the budgets of one variant, size and seed are branches of one training."""
    learning_rate: Search | dict[Name, dict[Name, PositiveFloat]] = Field(default=Search())
    """The search, or variant → size → rate."""

    @property
    def ordered(self) -> tuple[str, ...]:
        """The variants, the baseline first."""
        return (self.baseline, *(name for name in self.variants if name != self.baseline))

    @property
    def search_sizes(self) -> tuple[str, ...]:
        """The sizes at which rates are searched; none where they are fixed."""
        if not isinstance(self.learning_rate, Search):
            return ()
        return self.learning_rate.at or self.sizes[:2]

    @field_validator("variants", "sizes", "tokens_per_parameter", mode="before")
    @classmethod
    def _is_a_list(cls, given: object) -> object:
        if not isinstance(given, list | tuple):
            raise ValueError(f"{str(given)[:40]!r} is no list: write it in brackets, [one, another]")
        return given

    @field_validator("target", mode="before")
    @classmethod
    def _as_on_a_command_line(cls, given: object) -> object:
        return parsed_target(given, "target") if isinstance(given, str) else given

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _has_keys(cls, given: object) -> object:
        if not isinstance(given, Mapping | Search):
            raise ValueError(f"{str(given)[:40]!r} is neither {SEARCHED} nor {FIXED}")
        if isinstance(given, Mapping) and not _searches(given):
            for name, rates in given.items():
                if not isinstance(rates, Mapping) or any(isinstance(each, Mapping) for each in rates.values()):
                    raise ValueError(f"{str(name)[:40]!r} is no variant with a rate for each size: write {RATES}")
        return given

    @field_validator("variants", "sizes", "tokens_per_parameter")
    @classmethod
    def _once(cls, given: tuple[object, ...]) -> tuple[object, ...]:
        if twice := [each for each in given if given.count(each) > 1]:
            raise ValueError(f"{twice[0]} is named twice")
        return given

    @model_validator(mode="after")
    def _is_a_ladder(self) -> StudySection:
        ratios = ", ".join(f"{each:g}" for each in self.tokens_per_parameter)
        if len(self.variants) < 2:
            raise ValueError(f"variants: {', '.join(self.variants) or 'none'}: a study compares 2 or more")
        if self.baseline not in self.variants:
            raise ValueError(f"baseline: {self.baseline} is none of the variants {', '.join(self.variants)}")
        if len(self.sizes) < LEAST_SIZES:
            raise ValueError(
                f"sizes: {', '.join(self.sizes)}: a ladder needs {LEAST_SIZES} sizes; the trend of a difference "
                "cannot be told from two"
            )
        if len(self.tokens_per_parameter) < LEAST_BUDGETS:
            raise ValueError(f"tokens_per_parameter: {ratios}: a ladder needs {LEAST_BUDGETS} budgets at each size")
        if isinstance(self.learning_rate, dict):
            lacking = [
                f"{variant}_{size}"
                for variant in self.variants
                for size in self.sizes
                if size not in self.learning_rate.get(variant, {})
            ]
            if lacking:
                raise ValueError(f"learning_rate: fixed rates lack {', '.join(lacking)}")
        if strange := [each for each in self.search_sizes if each not in self.sizes]:
            raise ValueError(f"learning_rate.at: {strange[0]} is none of the sizes {', '.join(self.sizes)}")
        return self


def written(matrix: Path, given: Mapping[str, object]) -> dict[str, object]:
    """Return the words of a matrix's study with those of the command laid over them; the baseline is the first variant.

    Raises ConfigError: the matrix cannot be read, or neither it nor the command names variants.
    """
    own = load_matrix(matrix).study or {}
    words = {**own, **given}
    if "variants" not in words:
        lacking = "study: variants: are missing: name 2 or more" if own else f"has no section study, with {PARTS}"
        raise ConfigError(f"{matrix.name}: {lacking}")
    named = words.get("variants")
    if "baseline" not in words and isinstance(named, list | tuple) and named:
        words["baseline"] = named[0]
    return words


def section_of(words: Mapping[str, object], matrix: Path) -> StudySection:
    """Return the section that these words are. Raises ConfigError: the message has every mistake."""
    try:
        section = StudySection.model_validate(words)
    except ValidationError as error:
        # Of the two forms of learning_rate, the mistakes in the one that is written.
        other = "dict[" if _searches(words.get("learning_rate")) else Search.__name__
        mistakes = [
            each for each in error.errors() if not any(str(part).startswith(other) for part in each["loc"][1:2])
        ]
        raise ConfigError([_line(each["loc"], each["msg"]) for each in mistakes]) from None
    known, problems = load_matrix(matrix), []
    named = {"variants": section.variants, "sizes": (*section.sizes, section.target.size)}
    for kind, names in named.items():
        there = known.variants if kind == "variants" else known.sizes
        for name in dict.fromkeys(names):
            if name not in there:
                hint = did_you_mean(name, there, f"there are {', '.join(there)}")
                problems.append(f"study: {kind}: the matrix has no {kind[:-1]} {name}: {hint}")
    if problems:
        raise ConfigError(problems)
    return section


def _searches(rates: object) -> bool:
    """Return whether the words of `learning_rate` are those of a search, not rates by variant."""
    return isinstance(rates, Mapping) and not rates.keys().isdisjoint(Search.model_fields)


def _line(place: tuple[int | str, ...], message: str) -> str:
    where = "".join(f"{each}: " for each in place if isinstance(each, str) and "[" not in each and each != "Search")
    if message == "Extra inputs are not permitted":
        parts: dict[str, type[Part]] = {"target": Target, "learning_rate": Search}
        keys = parts.get(str(place[0]), StudySection).model_fields
        hint = did_you_mean(str(place[-1]), keys, f"the keys are {', '.join(keys)}")
        message = f"unknown key; {hint}"
    told = MISSING.get(str(place[0]), message) if message == "Field required" and len(place) == 1 else message
    return f"study: {where}{told.removeprefix('Value error, ')}"


def parsed_target(text: str, key: str = "--target") -> dict[str, object]:
    """Return the target of a text like 1.5B@20x. Raises ConfigError: it is none."""
    found = re.fullmatch(r"([^@]+)(?:@(\d+(?:\.\d+)?)x)?", text.strip())
    if found is None:
        raise ConfigError(f"{key}: {text[:40]!r} is no size at tokens per parameter, like 1.5B@20x")
    return {"size": found[1], **({"tokens_per_parameter": float(found[2])} if found[2] else {})}
