"""Select the fine-tunings of a sweep: names of experiments/finetuning.yaml, with axes `key=value,value`.

`launch` selects runs on machines without torch and tokenizers: nothing here may import them.
"""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.config.matrix import MATRIX
from efficientbench.finetuning.config import SEEDS, FinetuneConfig
from efficientbench.finetuning.load import SUITE, WORDS, named_tunings, resolve_tuning, settable_keys
from efficientbench.sweep.combinations import Combination, Resolver, combined, parse_axes
from efficientbench.sweep.selection import Request


def names_tunings(request: Request) -> bool:
    """Return whether the request names fine-tunings: runs like lora_7B, methods, or all as `finetuning`.

    Raises ConfigError: the request names fine-tunings and other runs.
    """
    if request.matrix != MATRIX:
        return False
    known = {SUITE, *(word for each in named_tunings().values() for word in (each.name, each.method))}
    tunings = [name for name in request.only if name in known]
    others = [name for name in request.only if name not in known]
    if tunings and others:
        near = nearest(others[0], known)
        hint = f"did you mean {near}?" if near else "trainings and fine-tunings are named apart"
        raise ConfigError(f"--only: {tunings[0]} is a fine-tuning and {others[0][:80]!r} is not: {hint}")
    return bool(tunings)


def chosen_tunings(request: Request, name: str | None = None) -> list[Combination[FinetuneConfig]]:
    """Return every fine-tuning that the request chooses, in the order of the file and the axes.

    `name`: the only fine-tuning to combine, instead of the request's.

    Raises:
        ConfigError: a size or an axis is unknown, or seeds are both an axis and repeated. A refused configuration is
            returned with its reason.
    """
    keys = settable_keys()
    axes = parse_axes(request.axes, keys, WORDS)
    for seed in SEEDS:
        if request.repeat is not None and seed in axes:
            raise ConfigError(f"--repeat sets the seeds; give either --repeat or --set {seed}")
    names = _selected(request.only, request.sizes) if name is None else [name]
    resolver = Resolver(lambda name, given: resolve_tuning(name, request.smoke, given), keys, WORDS)
    return combined(resolver, names, axes, request.overrides)


def _selected(only: Sequence[str], sizes: Sequence[str]) -> list[str]:
    """Return the names of the fine-tunings of these names and sizes; without sizes, of every size."""
    runs = named_tunings().values()
    known = dict.fromkeys(each.size for each in runs)
    for size in sizes:
        if size not in known:
            near = nearest(size, known)
            hint = f"did you mean {near}?" if near else f"the sizes are {', '.join(known)}"
            raise ConfigError(f"--sizes: there is no size of fine-tunings called {size[:80]!r}: {hint}")
    chosen = [each for each in runs if {each.name, each.method, SUITE} & set(only)]
    left = [each.name for each in chosen if not sizes or each.size in sizes]
    if not left:
        there = ", ".join(dict.fromkeys(each.size for each in chosen))
        raise ConfigError(f"--sizes: no chosen run has the size {' or '.join(sizes)}; available sizes: {there}")
    return left
