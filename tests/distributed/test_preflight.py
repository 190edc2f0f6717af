"""The preflight on real ranks: a rank whose core others use is named, and a slowed link in its direction."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from replicas.places import two_hosts
from support.command_line import TINY
from support.ranks import Ranks
from support.slowed import compared, computing, on_hosts, slow_down

from efficientbench.worker.preflight import MOST_PARTNERS, pairings


@pytest.mark.proof
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is no slower than another")
def test_a_rank_whose_core_others_use_is_named(ranks: Callable[[int], Ranks]) -> None:
    with computing(sorted(os.sched_getaffinity(0))[1]):
        first, second = ranks(2).call(compared, 3.0)
    assert first == second
    assert (first.devices, first.links, first.rounds) == (2, 2, 11)
    named = {each.what: each.times_others for each in first.slow if "link" not in each.what}
    assert set(named) == {"matmul on node 1, device 0", "memory on node 1, device 0"}
    assert min(named.values()) > 1.5


@pytest.mark.proof
def test_a_slowed_link_is_named_in_its_direction(tmp_path: Path) -> None:
    words = ("calibrate", "gqa_1.5B", "dlc", "--smoke", *TINY, "parallel.dp=2", "--preflight", "faults.preflight_s=3")
    with two_hosts() as hosts:
        slow_down(hosts[0], mbit=100)
        said = on_hosts(hosts, *words, f"data.cache={tmp_path}")
    links = [line for line in said.splitlines() if "link from" in line]
    assert len(links) == 1, said
    assert "link from node 0, device 0 to node 1, device 0: " in links[0]
    assert not list(tmp_path.glob("calibration_*"))


@pytest.mark.parametrize("world", range(2, 14))
def test_pairings_have_each_pair_once_and_no_rank_twice_at_a_time(world: int) -> None:
    found = pairings(world)
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(world), 2))
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in found)


def test_pairings_of_many_ranks_are_bounded() -> None:
    assert len(pairings(1024)) <= MOST_PARTNERS
    assert pairings(1) == []
