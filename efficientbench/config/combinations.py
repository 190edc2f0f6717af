"""What combines with what: every variant of the matrix tried on the layouts below, by the code that refuses a run."""

from __future__ import annotations

import functools
from itertools import combinations

from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig

PARTS = {
    "TP": {"tp": 2},
    "TP + SP": {"tp": 2, "sp": True},
    "PP": {"pp": 2},
    "PP interleaved": {"pp": 2, "vpp": 2},
    "DP": {"dp": 2},
    "EP": {"ep": 2},
    "CP": {"cp": 2},
    "recompute": {},
}
"""Ways to share a run's work or memory, two ranks each, by keys of `parallel`; any of them may be multiplied."""


def refusals(name: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Why the run called `name` cannot have these parts together; empty where it can."""
    config = _resolved(name)
    parallel = config.parallel.model_copy(update={key: value for part in parts for key, value in PARTS[part].items()})
    training = config.training.model_copy(update={"recompute": "full" if "recompute" in parts else "none"})
    try:
        Layout.of(config.model_copy(update={"parallel": parallel, "training": training}), 1, oversubscribe=True)
    except ConfigError as error:
        return error.problems
    return ()


@functools.lru_cache(maxsize=32)
def _resolved(name: str) -> RunConfig:
    return resolve(name)


def products() -> list[tuple[str, ...]]:
    """Every product of the parts; each parallelism once."""
    alternatives = ({"TP", "TP + SP"}, {"PP", "PP interleaved"})
    return [
        chosen
        for count in range(1, len(PARTS) + 1)
        for chosen in combinations(PARTS, count)
        if not any(each <= set(chosen) for each in alternatives)
    ]


def runs() -> dict[str, str]:
    """One run of each variant, by the variant's name: of its middle size, or its only one."""
    found: dict[str, str] = {}
    for run in load_matrix().runs:
        if run.variant not in found or run.size.startswith("1.5B"):
            found[run.variant] = run.name
    return found


def table() -> str:
    """Return a table in Markdown: a row for each variant, a column for each part, and below it the reasons."""
    reasons: list[str] = []
    rows = [f"| variant | {' | '.join(PARTS)} |", "|---" * (len(PARTS) + 1) + "|"]
    for variant, name in runs().items():
        cells = []
        for part in PARTS:
            problems = "; ".join(refusals(name, (part,)))
            if problems and problems not in reasons:
                reasons.append(problems)
            cells.append(f"no ({reasons.index(problems) + 1})" if problems else "yes")
        rows.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", *(f"{number}. `{reason}`" for number, reason in enumerate(reasons, start=1))])
