"""The table of the layouts on which each variant runs, made by the code that refuses a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig

PARTS: dict[str, Mapping[str, object]] = {
    "TP": {"parallel.tp": 2},
    "TP + SP": {"parallel.tp": 2, "parallel.sp": True},
    "PP": {"parallel.pp": 2},
    "PP interleaved": {"parallel.pp": 2, "parallel.vpp": 2},
    "DP": {"parallel.dp": 2},
    "EP": {"parallel.ep": 2},
    "CP": {"parallel.cp": 2},
    "recompute": {"training.recompute": "full"},
}
"""Way to share a run's work or memory → its keys, for two ranks."""


def problems(config: RunConfig, keys: Mapping[str, object]) -> tuple[str, ...]:
    """Return why a run cannot have these keys, by dotted name, on a CPU; empty where it can."""
    for key, value in keys.items():
        section, _, name = key.partition(".")
        config = config.changed(section, **{name: value})
    try:
        Layout.of(config, 1, oversubscribe=True)
    except ConfigError as error:
        return error.problems
    return ()


def refusals(name: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return why the run called `name` cannot combine these PARTS; empty where it can."""
    return problems(_resolved(name), {key: value for part in parts for key, value in PARTS[part].items()})


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
            reason = "; ".join(refusals(name, (part,)))
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(f"no ({reasons.index(reason) + 1})" if reason else "yes")
        rows.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", *(f"{number}. `{reason}`" for number, reason in enumerate(reasons, start=1))])
