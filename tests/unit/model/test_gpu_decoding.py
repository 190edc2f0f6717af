"""Decoding at its real size on a GPU that has no memory and no numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replicas.fake_cuda.processes import forked

MOST_LAUNCHES = {"gqa_0.5B": 1210, "mla_0.5B": 1475, "nsa_0.5B": 4255}
"""Of a new token of each row."""


@pytest.fixture(scope="module")
def decode(fake_gpu: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """What new tokens ask of the device, see decode.py."""
    with forked("decode", fake_gpu) as ask:
        yield ask


@pytest.mark.proof
@pytest.mark.parametrize("name", MOST_LAUNCHES)
def test_a_token_costs_as_many_launches_wherever_it_stands(name: str, decode: Callable[..., dict[str, Any]]) -> None:
    steps = decode(name, "300", "1000", "4000")["steps"]
    for step in steps:
        assert step["launches"] == steps[0]["launches"] <= MOST_LAUNCHES[name], step["most"]
        # The tokens go to the device; nothing comes back before the choice of the next.
        assert (step["to_host"], step["to_device"], step["waits"]) == (0, 1, [])
        assert step["kept_bytes"] == 0
