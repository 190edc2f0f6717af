"""Fit the planner's efficiencies to one half of published runs, and show their errors on the other.

    python tests/benchmarks/published_speeds.py [--write]

`published_split.py` wrote the halves before this. Each group of runs has efficiencies of its own; dense models on
devices without published runs have those of all dense runs, and as errors those on each family of devices by a fit to
the other families. With `--write` the planner's table, `efficiencies.yaml`, is written too. A fit takes the least mean
of |log(projected / published)|, with a small price for leaving the assumptions that stood before.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml
from support.measured import MEASURED, options, write_content
from support.published import FIT, HELD_OUT, Stated

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.devices.cpu import CPU
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.sensors.hardware import DeviceRates
from efficientbench.planning import step_time
from efficientbench.planning.efficiency import TABLE, Efficiency, Reached

BEFORE = Efficiency(matmul=0.7, attention=0.45, memory=0.8, link=0.8)
"""What the planner assumed before."""
PRICE = 0.02
"""What a change of a share by a factor e costs, in units of the mean error."""
LEAST = 0.05
SAME_CHIPS = {
    "A100": ("A100 40GB", "A100 80GB SXM", "A800 80GB SXM"),
    "H100": ("H100 SXM", "H200 SXM", "H800 SXM"),
    "Ascend 910B": ("Ascend 910B1", "Ascend 910B2", "Ascend 910B3", "Ascend 910B4"),
}
"""Family → the devices that its efficiencies are for; the sources do not name the SKU of a 910B."""
HEADER = """\
# Shares of a device's peaks that published runs reached, and the errors of projections with them on other published
# runs. Written by tests/benchmarks/published_speeds.py --write, from docs/measured/published_split.json.
"""


@dataclass(frozen=True)
class Planned:
    """A published run with what the planner needs to project it."""

    stated: Stated
    config: RunConfig
    layout: Layout
    rates: DeviceRates

    def ratio(self, efficiency: Efficiency) -> float:
        """Return projected over published tokens a second."""
        step_s = step_time.project(self.config, self.layout, self.rates, efficiency).step_time_s
        training = self.config.training
        tokens_s = training.global_batch_size * training.seq_len / step_s / self.stated.world
        return tokens_s / self.stated.tokens_per_s


def main() -> None:
    arguments = options(__doc__).parse_args()
    count_once()
    runs = [planned(Stated(**each | {"keys": tuple(each["keys"])})) for each in split()["stated"]]
    groups = {group: [each for each in runs if each.stated.group == group] for group in sorted(groups_of(runs))}
    table, ratios = [], {}
    for group, members in groups.items():
        found = fit(half(members, FIT))
        ratios |= {each.stated.row: each.ratio(found) for each in half(members, HELD_OUT)}
        family = group.removeprefix("dense, ")
        kind = "models with experts" if group == "experts" else "dense models"
        table.append(
            reached(
                f"{kind} on {devices_of(members)}",
                SAME_CHIPS.get(family, ()),
                group == "experts",
                found,
                members,
                [ratios[each.stated.row] for each in half(members, HELD_OUT)],
            )
        )
    dense = {group: members for group, members in groups.items() if group != "experts"}
    table.append(elsewhere(dense))
    report(arguments.write, table, groups, ratios)


def split() -> dict[str, list[dict[str, object]]]:
    """Return what `published_split.py` has written."""
    content: dict[str, list[dict[str, object]]] = json.loads((MEASURED / "published_split.json").read_text("utf-8"))
    return content


def count_once() -> None:
    """Let the planner's formulas count each run once: the fit projects it many times."""
    for name in ("micro_batch_work", "micro_batch_transfers", "step_transfers", "optimizer_work", "rank_parameters"):
        setattr(step_time, name, remembered(getattr(step_time, name)))


def remembered(function: Callable[..., object]) -> Callable[..., object]:
    """Return a formula that counts a stage of a configuration once."""
    found: dict[tuple[int, int], object] = {}

    def call(config: RunConfig, layout: Layout, stage: int) -> object:
        key = (id(config), stage)
        if key not in found:
            found[key] = function(config, layout, stage)
        return found[key]

    return call


def planned(stated: Stated) -> Planned:
    """Return a published run as the planner projects it."""
    return Planned(stated, *stated.plan())


def groups_of(runs: Sequence[Planned]) -> set[str]:
    return {each.stated.group for each in runs}


def half(runs: Sequence[Planned], name: str) -> list[Planned]:
    """Return the runs of a half."""
    return [each for each in runs if each.stated.half == name]


def devices_of(runs: Sequence[Planned]) -> str:
    """Return the names of the runs' devices."""
    names = sorted({each.stated.device for each in runs})
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def fit(runs: Sequence[Planned]) -> Efficiency:
    """Return the efficiency whose projections are nearest to these runs, by steps of one share at a time."""
    best = list(astuple(BEFORE))

    def badness(shares: Sequence[float]) -> float:
        left = sum(abs(math.log(share / before)) for share, before in zip(shares, astuple(BEFORE), strict=True))
        return statistics.mean(abs(math.log(each.ratio(Efficiency(*shares)))) for each in runs) + PRICE * left

    least = badness(best)
    for factor in (1.25, 1.1, 1.03):
        improved = True
        while improved:
            improved = False
            for place in range(len(best)):
                for step in (factor, 1 / factor):
                    tried = [*best]
                    tried[place] = min(1.0, max(LEAST, best[place] * step))
                    if tried != best and (found := badness(tried)) < least:
                        best, least, improved = tried, found, True
    return Efficiency(*(round(share, 3) for share in best))


def reached(
    runs: str,
    devices: tuple[str, ...],
    experts: bool,
    found: Efficiency,
    members: Sequence[Planned],
    ratios: Sequence[float],
) -> Reached:
    """Return a row of the planner's table; `ratios`: projected over published speed of the held-out runs."""
    errors = [abs(ratio - 1) for ratio in ratios]
    return Reached(
        *(runs, devices, experts, found, len(half(members, FIT)), len(ratios)),
        *(round(each, 4) for each in (statistics.median(errors), max(errors), 1 / max(ratios), 1 / min(ratios))),
    )


def elsewhere(dense: dict[str, list[Planned]]) -> Reached:
    """Return the row for dense models on devices without published runs, with errors on families not fitted."""
    everything = [each for members in dense.values() for each in members]
    ratios = []
    for group, members in dense.items():
        others = fit(half([each for each in everything if each.stated.group != group], FIT))
        ratios += [each.ratio(others) for each in half(members, HELD_OUT)]
    runs = f"dense models on other devices ({devices_of(everything)}, each by a fit to the others)"
    return reached(runs, (), False, fit(half(everything, FIT)), everything, ratios)


def report(write: bool, table: Sequence[Reached], groups: dict[str, list[Planned]], ratios: dict[int, float]) -> None:
    """Print the errors; write them with the planner's table."""
    before = {group: [each.ratio(BEFORE) for each in half(members, HELD_OUT)] for group, members in groups.items()}
    rows = []
    for group, each in zip([*groups, None], table, strict=True):
        old = [abs(ratio - 1) for ratio in before[group]] if group else []
        rows.append(
            {
                "published runs": each.runs,
                "fitted": str(each.fitted),
                "held out": str(each.held_out),
                "median error before": f"{statistics.median(old):.0%}" if old else "–",
                "median error": f"{each.median_error:.0%}",
                "most": f"{each.most_error:.0%}",
                "published / projected": f"{each.lowest:.2f} to {each.highest:.2f}",
                "matmul, attention, memory, link": ", ".join(f"{share:.0%}" for share in astuple(each.efficiency)),
            }
        )
    held_out = [
        {
            "row": str(each.stated.row),
            "device": f"{each.stated.world} × {each.stated.device}",
            "model": f"{each.stated.model}, {each.config.training.seq_len}",
            "published": f"{each.stated.tokens_per_s:,.0f}",
            "error": f"{ratios[each.stated.row] - 1:+.0%}",
        }
        for members in groups.values()
        for each in half(members, HELD_OUT)
    ]
    conditions = "errors are of the held-out half, which no fit has seen: |projected / published tokens a second − 1|"
    print(*rows, *held_out, conditions, sep="\n")
    if write:
        content = [asdict(each) | {"devices": list(each.devices)} for each in table]
        write_whole(TABLE, HEADER + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        write_content(__file__, CPU(), {"conditions": conditions, "rows": rows, "held_out": held_out})


if __name__ == "__main__":
    main()
