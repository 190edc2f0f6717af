"""The named runs of matrix.yaml, hybrids.yaml and chat.yaml in experiments/, and their smaller shapes in smoke.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BeforeValidator, ValidationError, model_validator

from efficientbench.basics.errors import ConfigError, did_you_mean
from efficientbench.basics.foreign import parse_own_yaml, parse_yaml, read_text
from efficientbench.basics.part import Name, Part
from efficientbench.config.depths import depth_of, size_of_depth, smoke_size

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
MATRIX = EXPERIMENTS / "matrix.yaml"
CHAT = EXPERIMENTS / "chat.yaml"
HYBRIDS = EXPERIMENTS / "hybrids.yaml"

OTHER = "other"
"""Suite name of a run whose variant and size no suite combines."""

Overlay = dict[str, Any]
"""A part of a RunConfig as nested mappings. Resolving a run validates it."""


def _filled(layer: object) -> object:
    """Return a file's layer without its empty sections."""
    if isinstance(layer, dict):
        return {key: value for key, value in layer.items() if value is not None}
    return {} if layer is None else layer


Layer = Annotated[Overlay, BeforeValidator(_filled)]
"""The overlay of a size or a variant, which may be empty."""


class RunName(NamedTuple):
    """One named run of a suite."""

    variant: str
    size: str
    suite: str

    @property
    def name(self) -> str:
        """Name of the run: `<variant>_<size>`."""
        return f"{self.variant}_{self.size}"


class SuiteBlock(Part):
    """A part of a suite: each variant in every size."""

    variants: tuple[Name, ...]
    sizes: tuple[Name, ...]


class SmokeShapes(Part):
    """The changes of `--smoke` by size and by variant."""

    sizes: dict[Name, Layer] = {}
    variants: dict[Name, Layer] = {}


class Smoke(SmokeShapes):
    """The changes of `--smoke`: for all runs, by size, and by variant."""

    all: Overlay


class Matrix(Part):
    """The content of matrix.yaml."""

    sizes: dict[Name, Layer] = {}
    variants: dict[Name, Layer] = {}
    adjusted: dict[Name, Layer] = {}
    """What one run alone has beside its size and variant, by the run's name."""
    smoke: SmokeShapes = SmokeShapes()
    """Changes of `--smoke` that are laid over those of smoke.yaml."""
    suites: dict[Name, tuple[SuiteBlock, ...]]
    further: dict[Name, tuple[SuiteBlock, ...]] = {}
    """Suites whose runs have names and scripts, but which a sweep or table has only if it names them."""
    study: Overlay | None = None
    """What `efficientbench study` compares, and in which sizes: see `study.suite`."""
    beside: tuple[Matrix, ...] = ()
    """Matrices with their own sizes and variants, whose runs are treated like those of `further`."""

    @model_validator(mode="before")
    @classmethod
    def _study_needs_no_suites(cls, given: object) -> object:
        """Add empty suites where a study names the runs."""
        return {"suites": {}, **given} if isinstance(given, dict) and "study" in given else given

    @property
    def runs(self) -> tuple[RunName, ...]:
        """The runs of `suites`, in the order of the file."""
        return _runs(self.suites)

    @property
    def all_runs(self) -> tuple[RunName, ...]:
        """The runs of `suites`, then of `further`, then of the matrices in `beside`."""
        return (*_runs(self.suites | self.further), *(run for other in self.beside for run in other.all_runs))

    @property
    def other_runs(self) -> tuple[RunName, ...]:
        """The runs of no suite: each variant in the sizes that no suite combines with it."""
        named = {run.name for run in self.all_runs}
        found = (RunName(variant, size, OTHER) for variant in self.variants for size in self.sizes)
        return tuple(run for run in found if run.name not in named)

    def in_no_suite(self, name: str) -> bool:
        """Return whether `name` is a variant in a size that no suite combines."""
        variant, _, size = name.rpartition("_")
        return variant in self.variants and size in self.sizes and name not in {run.name for run in self.all_runs}

    def run(self, name: str) -> RunName:
        """Return the run called `name`, in any case: a variant in a size, whether a suite has it or not.

        Raises ConfigError: the variant or the size does not exist.
        """
        runs = by_name(self.all_runs)
        if name not in runs:
            name = self._in_our_case(name)
        variant, _, size = name.rpartition("_")
        if self._with_depth(variant, size) is not None or self.in_no_suite(name):
            return RunName(variant, size, OTHER)
        if name not in runs:
            part = [run.name for run in runs.values() if name.lower() in (run.variant.lower(), run.size.lower())]
            every = [*runs, *(run.name for run in self.other_runs)]
            hint = did_you_mean(name, every, f"the runs are {', '.join(runs)}")
            hint = f"did you mean {', '.join(part)}?" if part else hint
            raise ConfigError(f"there is no run called {name[:80]!r}: {hint}")
        return runs[name]

    def _in_our_case(self, name: str) -> str:
        """Return the name as the matrix writes it, where it has a run or a variant and a size of that name."""
        variant, _, size = name.rpartition("_")
        parts = [{each.lower(): each for each in own} for own in (self.variants, self.sizes)]
        other = "_".join(own.get(part.lower(), part) for own, part in zip(parts, (variant, size), strict=True))
        runs = {each.lower(): each for each in by_name(self.all_runs)}
        return runs.get(name.lower(), other if self.in_no_suite(other) else name)

    def of(self, run: RunName) -> Matrix:
        """Return the matrix that has the run's size and variant: this one or one of `beside`."""
        deep = self._with_depth(run.variant, run.size)
        return deep or next((other for other in self.beside if run in other.all_runs), self)

    def _with_depth(self, variant: str, size: str) -> Matrix | None:
        """Return the matrix in `beside` with a depth that it does not name; None unless its sizes are depths."""
        depth = depth_of(size)
        found = next((other for other in self.beside if variant in other.variants and size not in other.sizes), None)
        if depth is None or found is None or None in map(depth_of, found.sizes):
            return None
        layer = size_of_depth(found.sizes, depth)
        smoke = found.smoke.model_copy(update={"sizes": {**found.smoke.sizes, size: smoke_size(layer)}})
        return found.model_copy(update={"sizes": {**found.sizes, size: layer}, "smoke": smoke})


def by_name(runs: Iterable[RunName]) -> dict[str, RunName]:
    """Return runs by their names, in order; a run of two suites, such as a baseline, is that of the first."""
    found: dict[str, RunName] = {}
    for run in runs:
        found.setdefault(run.name, run)
    return found


def _runs(suites: Mapping[str, tuple[SuiteBlock, ...]]) -> tuple[RunName, ...]:
    return tuple(
        RunName(variant, size, suite)
        for suite, blocks in suites.items()
        for block in blocks
        for variant in block.variants
        for size in block.sizes
    )


def load_matrix(path: Path = MATRIX) -> Matrix:
    """Read the named runs of a file; a file other than the shipped matrix can use its sizes and variants too.

    Outside a clone `experiments/NAME`, which is not there, names the shipped file.

    Raises ConfigError: the file is missing or not a matrix.
    """
    shipped = EXPERIMENTS / path.name
    if path.parent.name == EXPERIMENTS.name and not path.exists() and shipped.exists():
        path = shipped
    if path == MATRIX:
        return _checked(_shipped().model_copy(update={"beside": (_chat(),)}), path)
    return _checked(_over(_shipped(), load_yaml(path, Matrix)), path)


def _shipped() -> Matrix:
    """Return matrix.yaml, with the sizes, variants and suites of hybrids.yaml."""
    matrix: Matrix = load_yaml(MATRIX, Matrix)
    hybrids: Matrix = load_yaml(HYBRIDS, Matrix)
    further = {**matrix.further, **hybrids.suites}
    return _over(matrix, hybrids).model_copy(update={"suites": matrix.suites, "further": further})


def _over(ours: Matrix, matrix: Matrix) -> Matrix:
    """Return a matrix that can use the sizes and variants of ours too, where it has none of that name."""
    own = {*matrix.variants, *matrix.sizes}

    def both(under: Mapping[str, Layer], over: Mapping[str, Layer]) -> dict[str, Layer]:
        return {name: each for name, each in under.items() if not {name, *name.rpartition("_")} & own} | {**over}

    parts = {part: both(getattr(ours, part), getattr(matrix, part)) for part in ("sizes", "variants", "adjusted")}
    smoke = {part: both(getattr(ours.smoke, part), getattr(matrix.smoke, part)) for part in SmokeShapes.model_fields}
    return matrix.model_copy(update={**parts, "smoke": SmokeShapes(**smoke)})


def _chat() -> Matrix:
    return _checked(load_yaml(CHAT, Matrix), CHAT)


def _checked(matrix: Matrix, path: Path) -> Matrix:
    problems = [
        f"{path.name}: suite {suite!r} names the {kind} {name!r}, which is not defined"
        for suite, blocks in (matrix.suites | matrix.further).items()
        for block in blocks
        for kind, names, known in (
            ("variant", block.variants, set(matrix.variants)),
            ("size", block.sizes, set(matrix.sizes)),
        )
        for name in names
        if name not in known
    ]
    problems += [
        f"{path.name}: adjusted.{name}: is no variant in a size"
        for name in matrix.adjusted
        if not (name.rpartition("_")[0] in matrix.variants and name.rpartition("_")[2] in matrix.sizes)
    ]
    if problems:
        raise ConfigError(problems)
    return matrix


def load_smoke(path: Path = EXPERIMENTS / "smoke.yaml") -> Smoke:
    """Read the smaller shapes of `--smoke`.

    Raises ConfigError: the file is missing or not valid.
    """
    return load_yaml(path, Smoke)


def load_yaml(path: Path, form: type[Part]) -> Any:
    """Read a YAML file and validate it as `form`. Raises ConfigError: the file is missing or not valid."""
    try:
        return _valid(path, read_text(path), form)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


# A study's plan looks up a thousand runs, each in the same files.
@lru_cache(maxsize=16)
def _valid(path: Path, text: str, form: type[Part]) -> Any:
    # Every command reads the shipped files.
    content = (parse_own_yaml if path.parent == EXPERIMENTS else parse_yaml)(text)
    # An escape may name a lone surrogate, which no record can hold.
    json.dumps(content, ensure_ascii=False, skipkeys=True, default=str).encode()
    if content is None:
        raise ConfigError(f"{path.name} is empty: its keys are {', '.join(form.model_fields)}")
    try:
        return form.model_validate(content)
    except ValidationError as error:
        lines, found = [], [(each["type"], each["loc"], each["msg"]) for each in error.errors()]
        strange = any(kind == "extra_forbidden" and len(place) == 1 for kind, place, _ in found)
        for kind, place, told in found:
            if len(place) == 1 and strange and kind == "missing":
                continue  # it is there, with a mistake in its name, or not needed beside what is
            where = ".".join(map(str, place))
            if len(place) == 1 and kind == "extra_forbidden":
                told = f"unknown key; {did_you_mean(where, form.model_fields, _keys_of(form))}"
            lines.append(f"{path.name}: {where}: {told}")
        raise ConfigError(lines) from None


def _keys_of(form: type[Any]) -> str:
    runs = "; a run's keys stand in a size or a variant, or in the command, like data.path=PATH"
    return f"the keys are {', '.join(form.model_fields)}{runs if form is Matrix else ''}"
