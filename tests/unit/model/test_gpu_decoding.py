"""Decoding at its real size on a GPU that has no memory and no numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from replicas.fake_cuda.processes import run

MOST_LAUNCHES = {"gqa_0.5B": 1210, "mla_0.5B": 1475, "nsa_0.5B": 4255}
"""Of a new token of each row."""


@pytest.mark.proof
@pytest.mark.parametrize("name", MOST_LAUNCHES)
def test_a_token_costs_as_many_launches_wherever_it_stands(name: str, fake_gpu: Path) -> None:
    steps = run("decode.py", fake_gpu, name, "300", "1000", "4000")["steps"]
    for step in steps:
        assert step["launches"] == steps[0]["launches"] <= MOST_LAUNCHES[name], step["most"]
        # The tokens go to the device; nothing comes back before the choice of the next.
        assert (step["to_host"], step["to_device"], step["waits"]) == (0, 1, [])
        assert step["kept_bytes"] == 0
