"""The configuration of a named run: defaults < matrix (size, variant) < smoke.yaml < key=value overrides."""

from __future__ import annotations

import contextlib
import os
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from efficientbench.architecture.model import OF_A_KIND, ModelConfig
from efficientbench.architecture.registry import OWN, SECTIONS, load_named
from efficientbench.architecture.variant import AttentionConfig, PositionConfig
from efficientbench.basics.errors import ConfigError, did_you_mean, nearest
from efficientbench.basics.part import Part
from efficientbench.config.matrix import MATRIX, Matrix, Overlay, RunName, Smoke, load_matrix, load_smoke
from efficientbench.config.schema import RunConfig
from efficientbench.config.spellings import ALIASES, TRAINING, plain_number, spelled
from efficientbench.config.training import BATCHES, LENGTHS, RISES

_DECIDED = {
    "variant": "the run's name",
    "size": "the run's name",
    "depth": "the run's name, as in nanochat_d12",
    "smoke": "--smoke",
    "match_left": "match",
    "model.code": "the files of your variants",
}
"""Keys that no override may set → what decides them."""
_OWN_KINDS = {kind: variant.config for variants in OWN.values() for kind, variant in variants.items()}
"""The keys of each kind of this project: kinds may share a name, and mean something else by it."""
_KIND = re.compile(rf"(model\.(?:kinds\.[^.=]+\.)?(?:{'|'.join(SECTIONS)})\.kind)=(.*)", re.DOTALL)
"""An override of the kind of a section, of the model or of a kind of its layers."""
_OF_A_KIND = re.compile(r"model\.kinds\.([^.]+)\.(.+)")
"""A key of a kind of layers: the kind's name, and what the key is called below `model`."""
_NULL_WORDS = frozenset({"", "~", "null", "none", "None", "Null", "NULL"})


def resolve(name: str, smoke: bool = False, overrides: Sequence[str] = (), matrix_file: Path = MATRIX) -> RunConfig:
    """Return the configuration of the run called `name` in a matrix.

    `overrides` are `dotted.key=value` texts; for one key the last counts. They are parsed, never evaluated.

    Raises ConfigError: the message has all mistakes.
    """
    matrix = load_matrix(matrix_file)
    run = matrix.run(name)
    tree = _named(run, matrix.of(run), load_smoke() if smoke else None)
    tree = _with_kinds(tree, overrides)
    keys = settable_keys()
    values: Overlay = {}
    problems: list[str] = []
    refused: set[str] = set()
    for override in overrides:
        ours, answer = spelled(override, TRAINING)
        key, separator, text = ours.partition("=")
        if answer is not None:
            problems.append(answer)
        elif not separator:
            problems.append(f"{_shown(override)}: an override is written key=value, like training.seq_len=1024")
        elif (field := _field(key, keys)) is None:
            problems.append(unknown_key(key, keys))
            refused |= {found[1]} if (found := _OF_A_KIND.match(key)) else set()
        elif key == "match_to" and text in matrix.of(run).variants:
            # A variant may have a name that otherwise unsets a key.
            values[key] = text
        else:
            try:
                values[key] = parse(key, text, field)
            except (yaml.YAMLError, RecursionError):
                problems.append(f"{key}: {_shown(text)} is not a list or a mapping as YAML writes them")
    layer: Overlay = {}
    for key, value in values.items():
        layer = merged(layer, nested(key, value))
    tree = _laid_over(tree, layer)
    for name in refused:
        # Its key has the message: that the pattern names no kind would be another of the same mistake.
        if name in (pattern if isinstance(pattern := _at(tree, "model.pattern"), list) else ()):
            tree = merged(nested(f"model.kinds.{name}", {}), tree)
    if _of_training(tree, "optimizer") == "muon":
        # Muon updates complete matrices, which the distributed optimizer would split among ranks.
        tree = merged({"parallel": {"distributed_optimizer": False}}, tree)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems += _problems(error)
    if problems:
        raise ConfigError(problems)
    return config


def check_is_no_file(output: Path) -> None:
    """Refuse a file in the place of the folder of runs. Raises ConfigError."""
    # Not output.is_file, which raises for a name that is too long: that is refused with the runs' own reasons.
    if os.path.isfile(output):
        raise ConfigError(f"output: {output} is a file; give a folder")


def _with_kinds(tree: Overlay, overrides: Sequence[str]) -> Overlay:
    """Return the tree of a run's files with the kinds of its overrides, and load kinds from outside this project.

    A different kind replaces its section, whose keys it does not have.
    """
    matches = filter(None, map(_KIND.fullmatch, overrides))
    for key, kind in {found[1]: found[2] for found in matches}.items():
        if _at(tree, key) not in (None, kind):
            tree = merged(tree, nested(key.removesuffix(".kind"), None))
        tree = merged(tree, nested(key, kind))
    load_named(tree)
    for override in overrides:
        key, _, text = override.partition("=")
        if key in ("model.first", "model.pattern", "model.kinds") and text[:1] in ("[", "{"):
            with contextlib.suppress(yaml.YAMLError, RecursionError):
                load_named(nested(key, yaml.load(text, yaml.BaseLoader)))
    return tree


def nested(key: str, value: object) -> Overlay:
    """Return the tree in which a dotted key has a value."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return typing.cast(Overlay, value)


def _at(tree: Mapping[str, Any], key: str) -> object:
    """Return the value of a dotted key; None where there is none."""
    found: Any = tree
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _field(key: str, keys: Mapping[str, FieldInfo]) -> FieldInfo | None:
    """Return the field of a key; for one of `model.kinds.NAME` that of the model; None for an unknown key."""
    kind = re.fullmatch(rf"model\.kinds\.[^.]+\.(({'|'.join(OF_A_KIND)})(\..+)?)", key)
    if kind and kind[1] == "moe":
        return ModelConfig.model_fields["moe"]
    return keys.get(f"model.{kind[1]}" if kind else key)


def settable_keys() -> dict[str, FieldInfo]:
    """Return every dotted key that an override may set, with its field; loaded variants' keys are included."""
    return {key: field for key, field in leaves(RunConfig, "") if key not in _DECIDED}


def leaves(part: type[Part], prefix: str) -> Iterable[tuple[str, FieldInfo]]:
    """Yield the field of each dotted key of a part; of a choice of parts, those of every one."""
    for name, field in part.model_fields.items():
        inner = [kind for kind in _alternatives(field) if isinstance(kind, type) and issubclass(kind, Part)]
        for base in (AttentionConfig, PositionConfig):
            inner = _subclasses(base) if inner and issubclass(inner[0], base) else inner
        if inner:
            for kind in inner:
                yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _subclasses(part: type[Part]) -> list[type[Part]]:
    return [each for direct in part.__subclasses__() for each in (direct, *_subclasses(direct))]


def _alternatives(field: FieldInfo) -> tuple[Any, ...]:
    union = typing.get_origin(field.annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(field.annotation) if union else (field.annotation,)
    return tuple(typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind for kind in kinds)


def _named(run: RunName, matrix: Matrix, smoke: Smoke | None) -> Overlay:
    tree: Overlay = {"variant": run.variant, "size": run.size, "smoke": smoke is not None}
    layers = [matrix.sizes[run.size], matrix.variants[run.variant], matrix.adjusted.get(run.name, {})]
    if smoke is not None:
        layers.append(smoke.all)
        for shapes in (smoke, matrix.smoke):
            layers += [shapes.sizes.get(run.size, {}), shapes.variants.get(run.variant, {})]
    for layer in layers:
        tree = _laid_over(tree, layer)
    return tree


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> Overlay:
    """Return `base` with the keys of `top` laid over it, section by section."""
    tree = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(tree.get(key), Mapping)
        tree[key] = merged(tree[key] if both else {}, value) if isinstance(value, Mapping) else value
    return tree


def _laid_over(tree: Overlay, layer: Overlay) -> Overlay:
    """Return `tree` with the values of `layer`; a length, batch or rise in `layer` unsets its alternatives there."""
    for keys in (LENGTHS, BATCHES, RISES):
        if any(_of_training(layer, key) is not None for key in keys):
            tree = merged(tree, {"training": dict.fromkeys(keys)})
    return merged(tree, layer)


def _of_training(layer: Overlay, key: str) -> object:
    training = layer.get("training")
    return training.get(key) if isinstance(training, Mapping) else None


def parse(key: str, text: str, field: FieldInfo) -> object:
    """Parse the text of an override of `key`, whose field is `field`.

    Numbers and booleans stay text, which the schema reads by the field's type: YAML's guesses (`010` is 8, `1:30` is
    90, `no` is false) would surprise.
    """
    kinds = _alternatives(field)
    if type(None) in kinds and text in _NULL_WORDS:
        return None
    if int in kinds or float in kinds:
        return plain_number(key, text)
    lists = any(typing.get_origin(kind) is tuple for kind in kinds)
    # A bracket may also begin a path, which hardly ends with one.
    if text[:1] in ("[", "{") and (str not in kinds or (lists and text[-1:] == "]")):
        return yaml.load(text, yaml.BaseLoader)
    return text


def _problems(error: ValidationError) -> list[str]:
    keys = settable_keys()
    lines = []
    for each in error.errors(include_url=False):
        path, kind = _without_kind(each["loc"], keys)
        key = ".".join(path)
        if each["type"] == "extra_forbidden":
            of_kind = f"kind {kind}" if kind else "this kind"
            lines.append(f"{key}: is no key of {of_kind}" if key in keys else unknown_key(key, keys))
            continue
        if each["type"] == "union_tag_invalid":
            tag, known = each["ctx"]["tag"], each["ctx"]["expected_tags"]
            hint = did_you_mean(str(tag), re.findall(r"\w+", known), "a variant of your own is package.module:VARIANT")
            lines.append(f"{key}.kind: {_shown(tag)} is not one of {known}; {hint}")
            continue
        message = each["msg"].removeprefix("Value error, ")
        about = _about(path, kind, keys)
        if each["type"] == "tuple_type" and re.fullmatch(r"[\w.,:-]{1,80}", str(each["input"])):
            lines.append(f"{key}: {_shown(each['input'])} is no list: write {key}=[{each['input']}]{about}")
            continue
        if each["type"] == "value_error":
            # A mistake of the whole configuration names its key itself.
            lines.append(f"{key}: {message}" if path else message)
            continue
        got = "" if each["type"] == "missing" else f"{_shown(each['input'])} does not fit: "
        lines.append(f"{key}: {got}{message[:1].lower()}{message[1:]}{about}")
    return lines


def _about(path: Sequence[str], kind: str | None, keys: Mapping[str, FieldInfo]) -> str:
    """Return what a key means, in brackets after a space; empty where nothing says so."""
    own = _OWN_KINDS[kind].model_fields if kind else {}
    described = own.get(path[-1]) if len(path) == 3 else None
    described = described or keys.get(".".join(path))
    return f" ({described.description})" if described and described.description else ""


def _without_kind(location: tuple[int | str, ...], keys: Mapping[str, FieldInfo]) -> tuple[list[str], str | None]:
    """Return the path of a mistake as files have it, and the kind that pydantic inserts after a section, if any."""
    path = [str(step) for step in location]
    for length in range(1, len(path)):
        section = ".".join(path[:length])
        if f"{section}.kind" in keys and path[length] in _OWN_KINDS:
            return path[:length] + path[length + 1 :], path[length]
    return path, None


def unknown_key(key: str, keys: Mapping[str, FieldInfo]) -> str:
    """Return the message for a key that is not in `keys`, with the key that was probably meant."""
    if found := _OF_A_KIND.fullmatch(key):
        # The keys that this kind can have: another model's would be another key.
        if f"model.{found[2]}" in keys:
            return f"{_shown_key(key)}: a kind has {', '.join(OF_A_KIND)} alone"
        of_model = [known.removeprefix("model.") for known in keys if known.startswith("model.")]
        own = [known for known in of_model if known.partition(".")[0] in OF_A_KIND]
        keys = {f"model.kinds.{found[1]}.{known}": keys[f"model.{known}"] for known in own}
    if key in _DECIDED:
        return f"{key}: is decided by {_DECIDED[key]} and cannot be overridden"
    if key in TRAINING and key not in ALIASES:
        # A name without a key of its own, where a value cannot be put into another: as an axis.
        return f"{key}: no key; {TRAINING[key]}"
    below = [known for known in keys if known.startswith(f"{key}.")]
    if below:
        return f"{key}: is a section; set its keys: {', '.join(below)}"
    leaf = key.rpartition(".")[2]
    near = [known for known in keys if known.rpartition(".")[2] == leaf]
    alias = ALIASES.get(leaf, "")
    near = near or ([alias] if alias in keys else [])
    if not near and (best := nearest(key, keys)):
        near = [best]
    if not near:
        leaves = {known.rpartition(".")[2]: known for known in keys}
        near = [leaves[best]] if (best := nearest(leaf, leaves)) else []
    if near:
        return f"{_shown_key(key)}: unknown key; did you mean {' or '.join(near)}?"
    sections = sorted({known.partition(".")[0] for known in keys})
    return f"{_shown_key(key)}: unknown key; keys begin with {', '.join(sections)}"


def _shown(value: object) -> str:
    """Format any value for a message: short and on one line."""
    text = repr(value) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _shown_key(key: str) -> str:
    return key if re.fullmatch(r"[\w.]{1,80}", key) else _shown(key)
