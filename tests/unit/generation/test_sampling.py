"""Tokens chosen from logits: by the probabilities of softmax, and by nothing but their own number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support.proofs import proofs_but

from efficientbench.basics.errors import ConfigError
from efficientbench.generation.sampling import Sampling, choose, distribution, uniform

LOGITS = np.array([2.5, 2.0, 1.0, -1.0, -4.0], dtype=np.float32)
TOKENS = np.array([7, 3, 9, 1, 4])
DRAWS = 20_000


@pytest.mark.parametrize("temperature", proofs_but([2.0], [0.5, 1.0, 2.0]))
def test_tokens_are_sampled_with_softmax_probabilities(temperature: float) -> None:
    sampling = Sampling(temperature, seed=3)
    drawn = [choose(LOGITS, TOKENS, sampling, uniform(3, 0, 0, step)) for step in range(DRAWS)]
    wanted = torch.softmax(torch.from_numpy(LOGITS).double() / temperature, dim=0)
    for token, share in zip(TOKENS, wanted.tolist(), strict=True):
        # Five standard deviations of a binomial share.
        assert abs(drawn.count(token) / DRAWS - share) < 5 * (share * (1 - share) / DRAWS) ** 0.5


def test_a_random_number_depends_on_its_four_coordinates_alone() -> None:
    places = list(itertools.product((0, 1), (0, 1, 5), (0, 1), (0, 1, 2)))
    numbers = [uniform(*place) for place in places]
    assert len(set(numbers)) == len(places)
    assert [uniform(*place) for place in reversed(places)] == numbers[::-1]
    assert all(0 <= number < 1 for number in numbers)


def test_top_p_keeps_the_fewest_likeliest_tokens_that_reach_p() -> None:
    shares = torch.softmax(torch.from_numpy(LOGITS).double(), dim=0)
    # Without the third the first two do not reach it.
    tokens, cumulative = distribution(LOGITS, TOKENS, Sampling(1.0, top_p=float(shares[:2].sum()) + 1e-6))
    assert tokens.tolist() == [3, 7, 9]
    kept = (shares[:3] / shares[:3].sum()).tolist()
    assert cumulative.tolist() == pytest.approx([kept[1], kept[0] + kept[1], 1.0])
    assert distribution(LOGITS, TOKENS, Sampling(1.0, top_p=0.0))[0].tolist() == [7]
    assert len(distribution(LOGITS, TOKENS, Sampling(1.0))[0]) == 5


def test_the_order_of_two_almost_equal_logits_does_not_change_the_choice() -> None:
    # As of one device and of another.
    here, there = np.array([1.0000001, 1.0, 0.5]), np.array([1.0000001, 1.0, 0.5])
    for step in range(200):
        number = uniform(0, 0, 0, step)
        one = choose(here, np.array([5, 2, 8]), Sampling(1.0), number)
        assert one == choose(there, np.array([2, 5, 8]), Sampling(1.0), number)


def test_the_likeliest_token_is_chosen_without_a_temperature() -> None:
    assert choose(LOGITS, TOKENS, Sampling(), 0.99) == 7
    assert Sampling(0.0, top_k=50).candidates(1000) == 1
    assert Sampling(1.0, top_k=50).candidates(1000) == 50
    assert Sampling(1.0, top_k=50).candidates(30) == 30
    assert Sampling(1.0).candidates(1000) == 1000


def test_a_temperature_near_0_chooses_the_likeliest_token() -> None:
    assert {choose(LOGITS, TOKENS, Sampling(1e-320), number) for number in (0.0, 0.5, 0.99)} == {7}


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_nan_is_refused_as_a_sampling_parameter(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: nan is no finite number"):
        Sampling(**{name: float("nan")})
