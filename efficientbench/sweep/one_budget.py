"""Gives the runs of a line one number of tokens, where `training.tokens` counts by parameters, like 20x.

`launch` selects runs on machines without torch: nothing here may import it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from efficientbench.architecture.variant import known
from efficientbench.config.budget import wanted_tokens
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters
from efficientbench.metrics.report.paper.paper import BASELINES, suite_of
from efficientbench.planning.matching import CHOICES
from efficientbench.sweep.combinations import Combination


def with_one_budget(combinations: Sequence[Combination[RunConfig]]) -> list[Combination[RunConfig]]:
    """Return the combinations, with as many tokens for all of a line as its baseline trains on; print the number.

    A line has the runs of a report's set: those of one suite, size and length whose overrides differ in CHOICES alone.
    Its baseline is the first run of a baseline variant, else the first run. The baseline keeps what the user wrote.
    """
    lines: dict[tuple[object, ...], list[int]] = {}
    for place, each in enumerate(combinations):
        if each.refused is None and isinstance(each.config.training.tokens, str):
            lines.setdefault(_line(each), []).append(place)
    found = list(combinations)
    for places in lines.values():
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
            training = found[place].config.training.model_copy(update={"tokens": tokens})
            config = found[place].config.model_copy(update={"training": training})
            overrides = (*found[place].overrides, f"training.tokens={tokens}")
            found[place] = replace(found[place], config=config, overrides=overrides)
    return found


def _parameters(config: RunConfig) -> int | None:
    return known(lambda: count_parameters(config.model).total)


def _line(combination: Combination[RunConfig]) -> tuple[object, ...]:
    config = combination.config
    suite, across_sizes, _ = suite_of(config.variant)
    shared = tuple(each for each in combination.overrides if not each.startswith(CHOICES))
    return suite, "" if across_sizes else config.size, config.training.tokens, shared
