"""Resolve the configuration of a named fine-tuning: defaults < size < method < smoke < key=value overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from efficientbench.basics.errors import ConfigError, did_you_mean
from efficientbench.config.load import leaves, merged, nested, parse, unknown_key
from efficientbench.config.matrix import load_matrix, load_yaml
from efficientbench.config.scripts import script
from efficientbench.config.spellings import TUNING, keys_of, spelled
from efficientbench.config.tunings import RUNS, Tunings, named_tunings
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.methods import find_method

SUITE = "finetuning"
"""The folder of the runs' scripts."""

_USES = {"true": "auto", "false": "off"}
_DECIDED = ("size", "smoke")


def tuning_scripts() -> dict[str, str]:
    """Return the text of every run's script, by its path below experiments/."""
    return dict(script(name, SUITE, RUNS, f"finetune {name}") for name in named_tunings())


def is_training(name: str) -> bool:
    """Return whether `name` is a run of the shipped matrix."""
    try:
        load_matrix().run(name)
    except ConfigError:
        return False
    return True


def resolve_tuning(name: str, smoke: bool = False, overrides: Sequence[str] = ()) -> FinetuneConfig:
    """Return the configuration of the fine-tuning `name`; a later override replaces an earlier one.

    Raises ConfigError: the name or an override is wrong; the message lists all mistakes in overrides.
    """
    runs: Tunings = load_yaml(RUNS, Tunings)
    tunings = named_tunings()
    if name not in tunings:
        if is_training(name):
            raise ConfigError(f"{name} is a training: efficientbench run {name}")
        sizes = f"<method>_<size>, of {', '.join(runs.methods)} and {', '.join(runs.sizes)}"
        raise ConfigError(f"there is no fine-tuning called {name[:80]!r}: {did_you_mean(name, tunings, sizes)}")
    run, keys = tunings[name], settable_keys()
    method = next((text[7:] for text in reversed(overrides) if text.startswith("method=")), run.method)
    tree: dict[str, Any] = {"method": method, "size": run.size, "smoke": smoke}
    for layer in (runs.sizes[run.size], runs.methods.get(method, {}), runs.smoke if smoke else {}):
        tree = merged(tree, layer)
    problems = []
    for override in overrides:
        ours, answer = (override, None) if override.partition("=")[0] in keys else spelled(override, TUNING)
        key, separator, text = ours.partition("=")
        if answer is not None:
            problems.append(answer)
        elif not separator:
            problems.append(f"{override[:80]!r}: an override is written key=value, like training.steps=100")
        elif key not in keys:
            # A pretraining key like training.seq_len may have a counterpart here under the same last word.
            meant = WORDS.get(key.rpartition(".")[2])
            problems.append(f"{key[:80]}: unknown key; did you mean {meant}?" if meant else unknown_key(key, keys))
        else:
            try:
                value = _value(key, text, keys[key])
            except (yaml.YAMLError, RecursionError):
                problems.append(f"{key}: {text[:80]!r} is not a list or a mapping as YAML writes them")
                continue
            if key == "training.epochs":
                # Both keys set the length of a run; the command line wins.
                tree.get("training", {}).pop("steps", None)
            tree = merged(tree, nested(key, value))
    try:
        config = FinetuneConfig.model_validate(tree)
    except ValidationError as error:
        problems += [
            f"{'.'.join(map(str, each['loc'])) or 'the configuration'}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors(include_url=False)
        ]
    if problems:
        raise ConfigError(problems)
    find_method(config.method)
    return config


def settable_keys() -> dict[str, FieldInfo]:
    """Return the field of every dotted key that an override may set."""
    return {key: field for key, field in leaves(FinetuneConfig, "") if key not in _DECIDED}


def _value(key: str, text: str, field: FieldInfo) -> object:
    if key == "curriculum.use":
        return _USES.get(text.lower(), text)
    # A list comes with brackets, or as words with commas or spaces.
    if key == "adapter.targets" and not text.startswith("["):
        return re.split(r"\s*,\s*|\s+", text.strip())
    return parse(key, text, field)


WORDS = keys_of(TUNING)
"""Our key for each name of other recipes and of pretraining."""
