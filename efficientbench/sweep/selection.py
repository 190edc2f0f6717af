"""Select the runs of a sweep: names of the matrix or of experiments/finetuning.yaml, with axes `key=value,value`.

`launch` selects runs on machines without torch: nothing here may import it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from efficientbench.architecture.registry import SECTIONS, load, load_named
from efficientbench.basics.errors import ConfigError, did_you_mean
from efficientbench.config.load import resolve, settable_keys
from efficientbench.config.matrix import MATRIX, Matrix, RunName, by_name, load_matrix
from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.config.spellings import ALIASES
from efficientbench.config.tunings import named_tunings
from efficientbench.finetuning.config import SEEDS, FinetuneConfig
from efficientbench.finetuning.load import SUITE, WORDS, resolve_tuning
from efficientbench.finetuning.load import settable_keys as tuning_keys
from efficientbench.planning.matching import matched
from efficientbench.sweep.combinations import Combination, Config, Resolver, combined, parse_axes


@dataclass(frozen=True)
class Request:
    """The runs that a sweep is asked for."""

    matrix: Path = MATRIX
    only: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    """Axes `key=value,value`."""
    overrides: tuple[str, ...] = ()
    """Overrides `key=value` of every run; not part of any name."""
    smoke: bool = False
    repeat: int | None = None
    retry_smaller: bool = False
    """Whether a run that is out of memory is retried with a smaller micro-batch."""
    generate: bool = False
    """Whether generation with each trained model is measured too."""
    widths: tuple[Quantization, ...] = ()
    """The widths of weights with which it is measured, beside that of the training."""


def chosen_combinations(request: Request, name: str | None = None) -> list[Combination[RunConfig]]:
    """Return every run that the request chooses, in the order of the matrix and the axes.

    `name`: the only run of the matrix to combine, instead of the request's.

    Raises:
        ConfigError: a name or an axis is unknown, or seeds are both an axis and repeated. A refused configuration is
            returned with its reason.
    """
    matrix = load_matrix(request.matrix)
    _load_variants(request, matrix)
    resolver = Resolver(
        lambda name, given: resolve(name, request.smoke, given, request.matrix), settable_keys(), ALIASES
    )
    axes = _axes(request, resolver, ("training.seed",))
    runs = select(matrix, request.only, request.sizes) if name is None else [matrix.run(name)]
    if not runs:
        raise ConfigError(f"{request.matrix.name}: its suites have no run: name runs by --only, or `study` the file")
    return combined(resolver, [run.name for run in runs], axes, request.overrides)


def matched_combinations(
    combinations: Sequence[Combination[RunConfig]], matrix: Path, tell: bool = True
) -> list[Combination[RunConfig]]:
    """Return the combinations with the sizes that their `match` asks for, or refused.

    tell: whether to print each size that changed.
    """
    found = list(combinations)
    for place, each in enumerate(found):
        if each.refused is not None:
            continue
        try:
            config, said = matched(each.config, each.overrides, matrix)
        except ConfigError as error:
            found[place] = replace(each, refused=str(error))
            continue
        found[place] = replace(each, config=config)
        if said and tell:
            print(said, file=sys.stderr)
    return found


def _axes(request: Request, resolver: Resolver[Config], seeds: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the request's axes. Raises ConfigError: one is wrong, or repeated seeds are an axis too."""
    axes = parse_axes(request.axes, resolver.keys, resolver.words)
    for seed in seeds:
        if request.repeat is not None and seed in axes:
            raise ConfigError(f"--repeat sets the seeds; give either --repeat or --set {seed}")
    return axes


def _load_variants(request: Request, matrix: Matrix) -> None:
    """Load the variants from outside this project that the request or its matrix names: axes may have their keys."""
    for variant in matrix.variants.values():
        load_named(variant)
    for section in SECTIONS:
        key = f"model.{section}.kind="
        for text in (*request.axes, *request.overrides):
            for kind in text.removeprefix(key).split(",") if text.startswith(key) else ():
                load(section, kind)


def select(matrix: Matrix, only: Sequence[str] = (), sizes: Sequence[str] = ()) -> list[RunName]:
    """Return the runs of these names and sizes, in the order of the matrix.

    Without names, return the runs of `Matrix.suites`; without sizes, the runs of every size.

    A name is a run's, a variant's or a suite's, or the first word of a suite's name, of several the first one's:
    `attention` for `attention_variants`. A variant has the sizes of its suites, and any named size of no suite; a
    variant of no suite needs sizes.

    Raises:
        ConfigError: a name or a size is unknown, or no chosen run has a size.
    """
    only, sizes = _in_our_case(only, matrix), _in_our_case(sizes, matrix)
    problems = [problem for name in only if (problem := _unknown_name(name, matrix, sizes))]
    known = dict.fromkeys([*matrix.sizes, *(run.size for run in matrix.all_runs)])
    for size in sizes:
        if size not in known:
            hint = did_you_mean(size, known, f"the sizes are {', '.join(known)}")
            problems.append(f"--sizes: there is no size called {size[:80]!r}: {hint}")
    if problems:
        raise ConfigError(problems)
    named = dict.fromkeys(run for name in only for run in _runs_called(name, matrix, sizes))
    in_suites = {run: place for place, run in enumerate(matrix.all_runs)}
    in_order = sorted(named, key=lambda run: in_suites.get(run, len(in_suites))) if only else matrix.runs
    chosen = list(by_name(in_order).values())
    left = [run for run in chosen if not sizes or run.size in sizes]
    lacking = [size for size in sizes if size not in {run.size for run in left}]
    if lacking:
        there = ", ".join(dict.fromkeys(run.size for run in chosen))
        raise ConfigError(f"--sizes: no chosen run has the size {' or '.join(lacking)}; available sizes: {there}")
    return left


def _in_our_case(names: Sequence[str], matrix: Matrix) -> list[str]:
    """Return names in the case of the runs, variants, suites and sizes that they name."""
    runs = {part for run in matrix.all_runs for part in (run.name, *run, run.suite.partition("_")[0])}
    ours = {each.lower(): each for each in (*matrix.variants, *matrix.sizes, *runs)}
    return [ours.get(name.lower(), name) for name in names]


def _runs_called(name: str, matrix: Matrix, sizes: Sequence[str] = ()) -> list[RunName]:
    found = [run for run in matrix.all_runs if name in (run.name, run.variant, run.suite)]
    if name in matrix.variants:
        # A suite's variant does not get the size of another suite, which may be a size with experts.
        taken = {run.size for run in matrix.all_runs} if found else set()
        found += [matrix.run(f"{name}_{size}") for size in sizes if size not in taken]
    if not found and matrix.in_no_suite(name):
        return [matrix.run(name)]
    first = next((run.suite for run in matrix.all_runs if name and run.suite.startswith(f"{name}_")), None)
    return found or [run for run in matrix.all_runs if run.suite == first]


def _unknown_name(name: str, matrix: Matrix, sizes: Sequence[str]) -> str | None:
    if _runs_called(name, matrix, [size for size in sizes if size in matrix.sizes]):
        return None
    if name in matrix.variants:
        return f"--only: {name} is in no suite: name its sizes by --sizes, like 1.5B"
    runs = matrix.all_runs
    names = [each for run in runs for each in (run.name, run.variant, run.suite, run.suite.partition("_")[0])]
    names += [each for tuning in named_tunings().values() for each in (tuning.name, tuning.method)]
    known = ", ".join(dict.fromkeys(run.suite for run in runs))
    hint = did_you_mean(name, names, f"name a run, a variant, or one of the suites {known}")
    return f"--only: no run, variant or suite is called {name[:80]!r}: {hint}"


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
        hint = did_you_mean(others[0], known, "trainings and fine-tunings are named apart")
        raise ConfigError(f"--only: {tunings[0]} is a fine-tuning and {others[0][:80]!r} is not: {hint}")
    return bool(tunings)


def chosen_tunings(request: Request, name: str | None = None) -> list[Combination[FinetuneConfig]]:
    """Return every fine-tuning that the request chooses, in the order of the file and the axes.

    `name`: the only fine-tuning to combine, instead of the request's.

    Raises:
        ConfigError: a size or an axis is unknown, or seeds are both an axis and repeated. A refused configuration is
            returned with its reason.
    """
    resolver = Resolver(lambda name, given: resolve_tuning(name, request.smoke, given), tuning_keys(), WORDS)
    axes = _axes(request, resolver, SEEDS)
    names = _selected(request.only, request.sizes) if name is None else [name]
    return combined(resolver, names, axes, request.overrides)


def _selected(only: Sequence[str], sizes: Sequence[str]) -> list[str]:
    """Return the names of the fine-tunings of these names and sizes; without sizes, of every size."""
    runs = named_tunings().values()
    known = dict.fromkeys(each.size for each in runs)
    for size in sizes:
        if size not in known:
            hint = did_you_mean(size, known, f"the sizes are {', '.join(known)}")
            raise ConfigError(f"--sizes: there is no size of fine-tunings called {size[:80]!r}: {hint}")
    chosen = [each for each in runs if {each.name, each.method, SUITE} & set(only)]
    left = [each.name for each in chosen if not sizes or each.size in sizes]
    if not left:
        there = ", ".join(dict.fromkeys(each.size for each in chosen))
        raise ConfigError(f"--sizes: no chosen run has the size {' or '.join(sizes)}; available sizes: {there}")
    return left
