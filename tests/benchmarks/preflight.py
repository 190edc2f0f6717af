"""How often a preflight names equal ranks, and whether it names a slowed rank and a slowed link.

Single-threaded gloo ranks that share a core compare each other for some seconds, again and again; then another process
computes on that core, of which the last rank gets less than the others. Where network namespaces can be made, two hosts
compare a link that one of them sends through slowly.

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
from support.slowed import FIRST_CORE, compared, computing, on_hosts, slow_down

RANKS = 2
SLOWED_TRIES, LINK_TRIES = 20, 5


def main() -> None:
    """Print the figures; exit with 1 where an equal rank was named, or a slowed one was not named alone."""
    parser = options(__doc__)
    parser.add_argument("--tries", type=int, default=200, help="preflights of equal ranks")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a preflight")
    arguments = parser.parse_args()
    with closing(Ranks(RANKS)) as ranks:
        equal = [named(ranks, arguments.seconds) for _ in range(arguments.tries)]
        with computing(FIRST_CORE, processes=1):
            slowed = [named(ranks, arguments.seconds, RANKS - 1) for _ in range(SLOWED_TRIES)]
    right = sum(any("matmul" in each for each in found) and _of(found, RANKS - 1) for found in slowed)
    figures = {
        "equal": Figure("preflights of equal ranks that named any", sum(map(bool, equal)), n=len(equal), n_of="tries"),
        "slowed rank": Figure("preflights that named the slowed rank alone", right, n=len(slowed), n_of="tries"),
    }
    links = slowed_links(arguments.seconds)
    if links is not None:
        what = "preflights that named the slowed link alone, in its direction"
        figures["slowed link"] = Figure(what, sum(links), n=len(links), n_of="tries")
    conditions = f"{RANKS} gloo ranks of one thread on one core, forms of {arguments.seconds:g} s"
    report(__file__, arguments, figures, conditions)
    sys.exit(int(any(equal) or right < len(slowed) or not all(links or [])))


def named(ranks: Ranks, time_s: float, slow: int | None = None) -> list[str]:
    """Return what a preflight named; `slow`: the rank that gets less of the core."""
    found = [each.what for each in ranks.call(compared, time_s, slow)[0].slow]
    print(found or "none", flush=True)
    return found


def _of(found: list[str], rank: int) -> bool:
    """Return whether all that was named is of a rank, which is a node of its own here."""
    return all(f"node {rank}, " in each for each in found)


def slowed_links(time_s: float) -> list[bool] | None:
    """Return whether each try named the slowed link alone; None where network namespaces cannot be made."""
    words = ("calibrate", "gqa_1.5B", "dlc", "--smoke", *TINY, "parallel.dp=2", "--preflight")
    try:
        with two_hosts() as hosts, tempfile.TemporaryDirectory() as folder:
            slow_down(hosts[0], mbit=100)
            keys = (f"faults.preflight_s={time_s:g}", f"data.cache={folder}")
            said = [on_hosts(hosts, *words, *keys) for _ in range(LINK_TRIES)]
    except pytest.skip.Exception as reason:
        print(f"slowed link: n/a; {reason}")
        return None
    found = [[line for line in text.splitlines() if "times as long" in line] for text in said]
    return [len(lines) == 1 and "link from node 0, device 0 to node 1, device 0" in lines[0] for lines in found]


if __name__ == "__main__":
    main()
