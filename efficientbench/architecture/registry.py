"""Finds the declaration of the attention or the positional encoding that a model names by its `kind`.

A kind is one of this project's names, an entry point's name in the group ENTRY_POINTS, or `package.module:VARIANT`. A
look-up imports nothing: only `load` runs code from outside this project, for a kind that the user's command or matrix
names, or the job that a rank gets from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from efficientbench.architecture import gdn, gqa, kda, mamba2, mla, nsa, positions
from efficientbench.architecture.variant import AttentionVariant, Place, PositionVariant
from efficientbench.basics import plugins
from efficientbench.basics.errors import ConfigError

ENTRY_POINTS = "efficientbench.variants"

Section = Literal["attention", "position"]
SECTIONS: tuple[Section, ...] = ("attention", "position")

# Neither this file nor what it imports may import torch or Megatron: configurations are read from the declarations.
_ATTENTION = (gqa.VARIANT, mla.VARIANT, nsa.VARIANT, gdn.VARIANT, kda.VARIANT, mamba2.VARIANT)
ATTENTION: dict[str, AttentionVariant] = {each.config.model_fields["kind"].default: each for each in _ATTENTION}
"""The project's own attention variants by kind; the first is the default."""
POSITIONS: dict[str, PositionVariant] = {each.config.model_fields["kind"].default: each for each in positions.VARIANTS}
"""The project's own positional encodings by kind; the first is the default."""
OWN: dict[Section, Mapping[str, AttentionVariant | PositionVariant]] = {"attention": ATTENTION, "position": POSITIONS}


def find(section: Section, kind: object) -> AttentionVariant | PositionVariant | None:
    """Return the declaration of a kind; None if it is neither this project's nor loaded."""
    if not isinstance(kind, str):
        return None
    if kind in OWN[section]:
        return OWN[section][kind]
    module, _, attribute = (outside(kind) or "").partition(":")
    # Not getattr: a module's own `__getattr__` may run code.
    found = getattr(sys.modules.get(module), "__dict__", {}).get(attribute)
    wanted = AttentionVariant if section == "attention" else PositionVariant
    return found if isinstance(found, wanted) else None


def outside(kind: str) -> str | None:
    """Return where a kind from outside this project is declared, as `package.module:VARIANT`; None for other kinds."""
    return plugins.place_of(kind, ENTRY_POINTS)


def load(section: Section, kind: str) -> None:
    """Import the declaration of a kind from outside this project; do nothing for other kinds.

    Raises ConfigError: the declaration does not exist, or its code fails.
    """
    place = None if kind in OWN[section] else outside(kind)
    if place is not None:
        wanted = AttentionVariant if section == "attention" else PositionVariant
        plugins.load(f"model.{section}.kind", place, lambda found: isinstance(found, wanted), wanted.__name__)
        # Read at once, before its file can change again.
        _code(kind)


def section_of(kind: str) -> Section:
    """Return the section of a kind from this project or outside. Raises ConfigError: no such kind, or as `load`."""
    for section in SECTIONS:
        if kind in OWN[section]:
            return section
    place = outside(kind)
    if place is None:
        ours = [*ATTENTION, *POSITIONS]
        raise ConfigError(plugins.unknown("variant", kind, ours, ENTRY_POINTS, "package.module:VARIANT"))
    wanted = "AttentionVariant or PositionVariant"
    found = plugins.load("KIND", place, lambda it: isinstance(it, AttentionVariant | PositionVariant), wanted)
    return "attention" if isinstance(found, AttentionVariant) else "position"


def load_named(config: Mapping[str, Any]) -> None:
    """Import the declarations from outside this project that a configuration names. Raises ConfigError as `load`."""
    for _, section, kind in _named(config.get("model")):
        load(section, kind)


def not_loaded(config: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `load_kinds` that a configuration needs: its kinds from outside that are not loaded."""
    keys: dict[tuple[Section, str], str] = {}
    for key, section, kind in _named(config.get("model")):
        keys.setdefault((section, kind), key)
    return [f"{key}={kind}" for (section, kind), key in keys.items() if outside(kind) and find(section, kind) is None]


def code_of(model: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the SHA-256 of the code of each kind from outside this project that a model names and that is loaded.

    It is that of its declaration, its layer and its kernels (`plugins.code_sha256`), as they were when it was loaded;
    None where one has no source file.
    """
    found = {kind: find(section, kind) for _, section, kind in _named(model) if kind not in OWN[section]}
    return {kind: _code(kind) for kind, variant in found.items() if variant is not None}


@cache
def _code(kind: str) -> str | None:
    place = outside(kind)
    assert place is not None
    variant = find("attention", kind) or find("position", kind)
    assert variant is not None
    dotted = [place, variant.layer, *([variant.kernels] if variant.kernels else [])]
    return plugins.code_sha256([name for name in dotted if not name.startswith("efficientbench.")])


def _named(model: object) -> Iterator[tuple[str, Section, str]]:
    """Yield key, section and kind of each variant that a model's keys name, those of its kinds of layers too."""
    model = model if isinstance(model, Mapping) else {}
    kinds = model.get("kinds")
    inner = kinds if isinstance(kinds, Mapping) else {}
    for place, each in {"model": model, **{f"model.kinds.{name}": each for name, each in inner.items()}}.items():
        for section in SECTIONS:
            keys = each.get(section) if isinstance(each, Mapping) else None
            kind = keys.get("kind") if isinstance(keys, Mapping) else None
            if isinstance(kind, str):
                # A pattern may name a variant itself, which then has that name in model.kinds.
                yield f"{'model' if place == f'model.kinds.{kind}' else place}.{section}.kind", section, kind
    for names in (model.get("first"), model.get("pattern")):
        for name in names if isinstance(names, Sequence) else ():
            if isinstance(name, str):
                yield "model.attention.kind", "attention", name


def load_kinds(arguments: Sequence[str]) -> None:
    """Import the declarations from outside this project that `model.attention.kind=package.module:VARIANT` names.

    Args:
        arguments: the arguments `model.attention.kind=…` or `model.position.kind=…`, or such of a kind of layers like
            `model.kinds.swa.attention.kind=…`, of a command that takes all other keys from a run's folder.

    Raises:
        ConfigError: an argument has another key, or as `load`.
    """
    sections = {f"model.{section}.kind": section for section in SECTIONS}
    for argument in arguments:
        key, _, kind = argument.partition("=")
        section = sections.get(re.sub(r"^model\.kinds\.[^.]+", "model", key))
        if section is None:
            raise ConfigError(
                f"{argument}: only {' and '.join(sections)} can be given here, or those of model.kinds; all else is "
                "the run's own"
            )
        load(section, kind)


def positions_at(places: frozenset[Place]) -> str:
    """List the kinds of this project's positional encodings that change one of the places, for a message."""
    kinds = [kind for kind, each in POSITIONS.items() if each.place in places]
    return " or ".join(part for part in (", ".join(kinds[:-1]), kinds[-1]) if part)
