"""The table of the layouts on which each variant runs, made by the code that refuses a run."""

from __future__ import annotations

import functools

from efficientbench.basics.errors import ConfigError
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
"""Way to share a run's work or memory → the keys of `parallel` for two ranks."""


def refusals(name: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return why the run called `name` cannot combine these PARTS; empty where it can."""
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


def run_of_each_variant() -> dict[str, str]:
    """Return the name of one run of each variant, by the variant's name: in a 1.5B size, else in its first size."""
    found: dict[str, str] = {}
    for run in load_matrix().runs:
        if run.variant not in found or run.size.startswith("1.5B"):
            found[run.variant] = run.name
    return found


def table() -> str:
    """Return the table in Markdown: a row for each variant, a column for each part, and the reasons below."""
    reasons: list[str] = []
    rows = [f"| variant | {' | '.join(PARTS)} |", "|---" * (len(PARTS) + 1) + "|"]
    for variant, name in run_of_each_variant().items():
        cells = []
        for part in PARTS:
            problems = "; ".join(refusals(name, (part,)))
            if problems and problems not in reasons:
                reasons.append(problems)
            cells.append(f"no ({reasons.index(problems) + 1})" if problems else "yes")
        rows.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", *(f"{number}. `{reason}`" for number, reason in enumerate(reasons, start=1))])
