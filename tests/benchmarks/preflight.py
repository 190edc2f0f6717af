"""How often a preflight names equal ranks, and whether it names a slowed rank and a slowed link.

Where network namespaces can be made, two hosts compare a link that one of them sends through slowly. Then gloo ranks
of one thread, which share a core, compare each other for some seconds, again and again: first while the last rank gets
a fifth of what the other gets of that core, then equal ones. Ctrl-C ends it with the tries so far.

    python3 tests/benchmarks/preflight.py [--tries 200] [--seconds 3] [--write]
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest
from replicas.places import two_hosts
from support.command_line import TINY
from support.measured import Figure, options, report
from support.ranks import Ranks
from support.slowed import compared, on_hosts, slow_down

RANKS = 2


def main() -> None:
    """Print the figures; exit with 1 where an equal rank was named, or a slowed one was not named alone."""
    parser = options(__doc__)
    parser.add_argument(
        "--tries",
        type=int,
        default=200,
        help="preflights of equal ranks; a tenth as many of a slowed rank, a fortieth of a slowed link",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of a preflight")
    arguments = parser.parse_args()
    links, slowed, equal = slowed_links(arguments.seconds, -(-arguments.tries // 40)), list[bool](), list[bool]()
    try:
        with closing(Ranks(RANKS)) as ranks:
            for _ in range(-(-arguments.tries // 10)):
                slowed.append(_of(named(ranks, arguments.seconds, RANKS - 1), RANKS - 1))
            for _ in range(arguments.tries):
                equal.append(not named(ranks, arguments.seconds))
    finally:
        # What ends the script early leaves the tries before.
        conditions = f"{RANKS} gloo ranks of one thread on one core, forms of {arguments.seconds:g} s"
        report(__file__, arguments, figures_of(links, slowed, equal), conditions)
    sys.exit(int(not all([*links, *slowed, *equal])))


def figures_of(links: list[bool], slowed: list[bool], equal: list[bool]) -> dict[str, Figure]:
    """Return the figures of tries, of each whether it was right; none of a kind that was not tried."""
    kinds = {
        "equal": ("share of preflights of equal ranks that named none", equal),
        "slowed rank": ("share of preflights that named the slowed rank alone", slowed),
        "slowed link": ("share of preflights that named the slowed link alone, in its direction", links),
    }
    return {
        key: Figure(what, sum(right) / len(right), n=len(right), n_of="tries")
        for key, (what, right) in kinds.items()
        if right
    }


def named(ranks: Ranks, time_s: float, slow: int | None = None) -> list[str]:
    """Return what a preflight named; `slow`: the rank that gets less of the core."""
    found = [each.what for each in ranks.call(compared, time_s, slow)[0].slow]
    print(found or "none", flush=True)
    return found


def _of(found: list[str], rank: int) -> bool:
    """Return whether a rank was named, which is a node of its own here, and no other with it."""
    return any("matmul" in each for each in found) and all(f"node {rank}, " in each for each in found)


def slowed_links(time_s: float, tries: int) -> list[bool]:
    """Return whether each try named the slowed link alone; none where network namespaces cannot be made."""
    words = ("calibrate", "gqa_1.5B", "dlc", "--smoke", *TINY, "parallel.dp=2", "--preflight")
    try:
        with two_hosts() as hosts, tempfile.TemporaryDirectory() as folder:
            slow_down(hosts[0], mbit=100)
            keys = (f"faults.preflight_s={time_s:g}", f"data.cache={folder}")
            said = [on_hosts(hosts, *words, *keys) for _ in range(tries)]
    except pytest.skip.Exception as reason:
        print(f"slowed link: n/a; {reason}")
        return []
    found = [[line for line in text.splitlines() if "times as long" in line] for text in said]
    return [len(lines) == 1 and "link from node 0, device 0 to node 1, device 0" in lines[0] for lines in found]


if __name__ == "__main__":
    main()
