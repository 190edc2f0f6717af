"""Makes the runs of a line comparable: one length of smoke runs, sizes as `match` asks, one number of tokens.

`launch` selects runs on machines without torch: nothing here may import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from efficientbench.architecture.variant import known
from efficientbench.config.budget import wanted_tokens
from efficientbench.config.schema import RunConfig
from efficientbench.config.spellings import ALIASES
from efficientbench.costs.model import count_parameters
from efficientbench.metrics.report.paper.paper import BASELINES, across_sizes, suite_of
from efficientbench.planning.matching import CHOICES
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.selection import Request, matched_combinations

_LENGTH = ("seq_len", "micro_batch_size", "global_batch_size")
"""Keys of `training` that decide the sequences of a step."""


def made_comparable(
    request: Request, combinations: Sequence[Combination[RunConfig]], can_run: Callable[[RunConfig], bool]
) -> list[Combination[RunConfig]]:
    """Return the combinations, with equal lengths, matched sizes and equal numbers of tokens; print what changed.

    `can_run` tells whether a configuration's layout can work on the machines that are meant. A line has the runs of a
    report's set: those of one suite, size and length whose overrides differ in CHOICES alone.
    """
    found = list(combinations)
    # A match by FLOPs depends on the length, and tokens by parameters on the match.
    if request.smoke:
        found = _with_one_length(found, can_run)
    return _with_one_budget(matched_combinations(found, request.matrix))


def _with_one_length(
    found: list[Combination[RunConfig]], can_run: Callable[[RunConfig], bool]
) -> list[Combination[RunConfig]]:
    """Give all smoke runs of a line the sequences and batches of its run with the longest sequences.

    Else no comparison of smoke runs could have NSA, which needs longer sequences than the others. What the user set
    stays, and so do lines whose longest run cannot run.
    """
    for places in _lines(found, lambda config: True, "training.tokens="):
        longest = max((found[place].config for place in places), key=lambda config: config.training.seq_len)
        shorter = [place for place in places if found[place].config.training.seq_len < longest.training.seq_len]
        if not shorter or not can_run(longest):
            continue
        names = ", ".join(found[place].config.name for place in shorter)
        print(f"training.seq_len: {longest.training.seq_len}, of {longest.name}, also for {names}", file=sys.stderr)
        for place in places:
            given = {ALIASES.get(key, key) for key in (each.partition("=")[0] for each in found[place].overrides)}
            values = {key: getattr(longest.training, key) for key in _LENGTH if f"training.{key}" not in given}
            found[place] = _changed(found[place], values)
    return found


def _with_one_budget(found: list[Combination[RunConfig]]) -> list[Combination[RunConfig]]:
    """Give all runs of a line as many tokens as its baseline trains on, where `training.tokens` is like 20x.

    The baseline is the first run of a baseline variant, else the first run. It keeps what the user wrote.
    """
    for places in _lines(found, lambda config: isinstance(config.training.tokens, str)):
        chosen = [place for place in places if found[place].config.variant in BASELINES]
        baseline = found[(chosen or places)[0]].config
        parameters = [_parameters(found[place].config) for place in places]
        own = parameters[places.index((chosen or places)[0])]
        others = [place for place, count in zip(places, parameters, strict=True) if count != own]
        if own is None or not others:
            continue
        written = baseline.training.tokens or ""
        tokens = wanted_tokens(written, own)
        names = ", ".join(found[place].config.name for place in others)
        print(f"training.tokens: {written} of {baseline.name} is {tokens:,}, also for {names}", file=sys.stderr)
        for place in others:
            found[place] = _changed(found[place], {"tokens": tokens})
    return found


def _lines(
    combinations: Sequence[Combination[RunConfig]], belongs: Callable[[RunConfig], bool], free: str = ""
) -> list[list[int]]:
    """Return the places of the runs of each line that are not refused and belong there.

    `free`: a further beginning of overrides in which runs of one line may differ.
    """
    free_keys = (*CHOICES, free) if free else CHOICES
    chosen: list[tuple[int, RunConfig, tuple[object, ...]]] = []
    beside: dict[tuple[object, ...], dict[str, Mapping[str, Any]]] = {}
    for place, each in enumerate(combinations):
        if each.refused is not None or not belongs(each.config):
            continue
        shared = tuple(word for word in each.overrides if not word.startswith(free_keys))
        key: tuple[object, ...] = each.config.size, None if free else each.config.training.tokens, shared
        chosen.append((place, each.config, key))
        if each.config.variant in BASELINES:
            beside.setdefault(key, {})[each.config.variant] = each.config.model.model_dump(mode="json")
    lines: dict[tuple[object, ...], list[int]] = {}
    for place, config, key in chosen:
        suite = suite_of(config.variant, config.model.model_dump(mode="json"), beside.get(key, {}))
        lines.setdefault((suite, "" if across_sizes(suite) else config.size, *key[1:]), []).append(place)
    return list(lines.values())


def _changed(combination: Combination[RunConfig], values: Mapping[str, object]) -> Combination[RunConfig]:
    """Return the combination with these values of `training`."""
    config = combination.config.changed("training", **values)
    overrides = (*combination.overrides, *(f"training.{key}={value}" for key, value in values.items()))
    return replace(combination, config=config, overrides=overrides)


def _parameters(config: RunConfig) -> int | None:
    return known(lambda: count_parameters(config.model).total)
