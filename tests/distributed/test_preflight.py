"""The preflight on real ranks: a rank that gets less of its core is named, and a slowed link in its direction."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from replicas.places import two_hosts
from support.command_line import TINY
from support.configs import tiny
from support.ranks import Ranks
from support.slowed import compared, on_hosts, slow_down

from efficientbench.running.resume import settings
from efficientbench.worker.preflight import MOST_PARTNERS, pairings


@pytest.mark.proof
def test_a_rank_that_gets_less_of_its_core_is_named(ranks: Callable[[int], Ranks]) -> None:
    first, second = ranks(2).call(compared, 3.0, 1)
    assert first == second
    assert (first.devices, first.links, first.rounds) == (2, 2, 19)
    named = {each.what for each in first.slow if "link" not in each.what}
    # The slices that a core is shared in can hide a slow rank in one of the works.
    assert named
    assert named <= {"matmul on node 1, device 0", "memory on node 1, device 0"}


@pytest.mark.proof
def test_equal_ranks_are_not_named(ranks: Callable[[int], Ranks]) -> None:
    pool = ranks(2)
    for _ in range(5):
        assert pool.call(compared, 3.0)[0].slow == []


@pytest.mark.proof
def test_a_rank_that_is_slow_only_at_first_is_not_named(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).call(compared, 3.0, 1, True)[0].slow == []


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


def test_the_time_of_a_preflight_makes_no_other_configuration() -> None:
    usual, changed = (tiny("gqa_1.5B", *keys).model_dump(mode="json") for keys in ((), ("faults.preflight_s=3",)))
    assert "preflight_s" not in usual["faults"]
    assert settings(usual) == settings(changed)


@pytest.mark.parametrize("world", range(2, 14))
def test_pairings_have_each_pair_once_and_no_rank_twice_at_a_time(world: int) -> None:
    found = pairings(world)
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(world), 2))
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in found)


def test_pairings_of_many_ranks_are_bounded() -> None:
    assert len(pairings(1024)) <= MOST_PARTNERS
    assert pairings(1) == []
