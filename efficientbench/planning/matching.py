"""Solves a model's size so that it costs as much as another run's: `match=flops match_to=gqa`.

`launch` selects runs on machines without torch: nothing here may import it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import UndeclaredError
from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.matrix import MATRIX, load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.config.spellings import ALIASES
from efficientbench.costs.model import count_parameters, flops_per_token, kv_cache_bytes_per_token

CHOICES = ("model.attention.", "model.position.", "model.moe.", "model.first", "model.pattern", "model.kinds")
"""Keys whose values are alternatives: runs that differ in them are compared with each other."""
NOTED, REFUSED = 0.01, 0.03
"""What may be left without a note, and at all."""
_STEP = 8
"""The feed-forward width on a tensor-parallel rank is a multiple of it."""
_WIDEST = 2**24

FIGURES: dict[str, tuple[str, Callable[[ModelConfig, RunConfig], int]]] = {
    "flops": (
        "training FLOPs per token",
        lambda model, run: flops_per_token(model, run.training.seq_len).training,
    ),
    "parameters": ("parameters", lambda model, run: count_parameters(model).total),
    "active": ("active parameters", lambda model, run: count_parameters(model).active),
    "cache": ("cache bytes per token", lambda model, run: kv_cache_bytes_per_token(model, run.training.dtype)),
}
"""Value of `match` → its name, and its formula for a model in sequences and dtype of a run."""


@dataclass(frozen=True)
class _Key:
    """A key of the model by which a figure grows."""

    section: str
    """Section of `model` that has the key; empty for the backbone."""
    name: str
    choices: Sequence[int]
    """Values that it may have, from the least."""

    def __str__(self) -> str:
        return ".".join(part for part in ("model", self.section, self.name) if part)

    def of(self, model: ModelConfig) -> int:
        return getattr(getattr(model, self.section) if self.section else model, self.name)

    def changed(self, model: ModelConfig, value: int) -> ModelConfig:
        changed: dict[str, object] = {self.name: value}
        if self.section:
            changed = {self.section: getattr(model, self.section).model_copy(update=changed)}
        return model.model_copy(update=changed)


def matched(
    config: RunConfig, overrides: Sequence[str] = (), matrix_file: Path = MATRIX
) -> tuple[RunConfig, str | None]:
    """Return a run of the matrix with the size that its `match` asks for, and the line to print where that changed.

    The other run has the same overrides but those of CHOICES, and this one's sequence, dtype and vocabulary.

    Raises ConfigError: the other run does not exist or is matched itself, or the figure stays too far from its figure.
    """
    if config.match is None:
        return config, None
    other = _other(config, overrides, matrix_file)
    title, count = FIGURES[config.match]
    try:
        wanted, own = (count(model, config) for model in (other.model, config.model))
        if own == wanted:
            return config.model_copy(update={"match_left": 0.0}), None
        if not wanted:
            raise ConfigError(f"match={config.match}: {other.name} has no {title}: give match_to another run")
        key = _key(config)
        # The figure grows with the key, so that the nearest values are those around the wanted figure.
        place = bisect_left(key.choices, wanted, key=lambda value: count(key.changed(config.model, value), config))
        near = key.choices[max(place - 1, 0) : place + 1]
        lefts = {value: count(key.changed(config.model, value), config) / wanted - 1 for value in near}
    except UndeclaredError as error:
        raise ConfigError(f"match={config.match}: {error}") from None
    best = min(lefts, key=lambda value: abs(lefts[value]))
    if abs(lefts[best]) > REFUSED:
        nearest = " and ".join(f"{key}={value}, {_more(left)}" for value, left in lefts.items())
        raise ConfigError(
            f"match={config.match}: {config.name} comes no nearer to the {wanted:,} {title} of {other.name} than "
            f"{REFUSED:.0%}: the nearest are {nearest}"
        )
    model = key.changed(config.model, best)
    found = config.model_copy(update={"model": model, "match_left": lefts[best]})
    before = key.of(config.model)
    if best == before and abs(lefts[best]) <= NOTED:
        return found, None
    instead = f" instead of {before}" if best != before else ""
    return found, f"{config.name}: {key}={best}{instead}, for the {told_match(found)}"


def told_match(config: RunConfig) -> str:
    """Return what the size of a run was solved for and what is left; empty for a run without `match`."""
    if config.match is None or config.match_left is None:
        return ""
    note = " (note: no other size comes nearer)" if abs(config.match_left) > NOTED else ""
    return f"{FIGURES[config.match][0]} of {config.match_to}, {_more(config.match_left)}{note}"


def _more(left: float) -> str:
    return f"{abs(left):.2%} {'more' if left > 0 else 'less'}" if round(left, 4) else "equal"


def _other(config: RunConfig, overrides: Sequence[str], matrix_file: Path) -> RunConfig:
    """Return the run that `match_to` names."""
    shared = [each for each in overrides if not ALIASES.get(each.partition("=")[0], each).startswith(CHOICES)]
    matrix = load_matrix(matrix_file)
    named = {run.name for run in matrix.all_runs}

    def run_called(name: str | None) -> str:
        is_run = name in named or matrix.in_no_suite(name or "")
        return name or "" if is_run else f"{name}_{config.size}"

    name = run_called(config.match_to)
    try:
        other = resolve(name, config.smoke, shared, matrix_file)
    except ConfigError as error:
        raise ConfigError(f"match_to={config.match_to}: {error}") from None
    if other.match is not None and run_called(other.match_to) != name:
        raise ConfigError(
            f"match_to={config.match_to}: {name} is itself matched to {other.match_to}: name a run that is not"
        )
    model = other.model.model_copy(update={"vocab_size": config.model.vocab_size})
    return other.model_copy(update={"model": model, "label": None})


def _key(config: RunConfig) -> _Key:
    """Return the key that `match` solves. Raises ConfigError: the attention has none for its cache."""
    model, parallel = config.model, config.parallel
    if config.match != "cache":
        step = _STEP * (parallel.tp if model.unrouted_networks else parallel.expert_tp)
        return _Key("", "ffn_hidden_size", range(step, _WIDEST, step))
    # A kind of layer may have keys of its own, which the model's do not change.
    choices = None if model.pattern else model.attention_variant.cache_choices
    if choices is None:
        raise ConfigError(
            f"match=cache: attention {model.attention.kind!r} of {config.name} declares no key by which its cache "
            "grows (AttentionVariant.cache_choices): set match=flops, parameters or active"
        )
    return _Key("attention", *choices(model))
