"""A whole optimizer step of each architecture at its real size on a GPU that has no memory and no numbers.

In a layout of several ranks it is that of the first one, whose transfers send nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replicas.fake_cuda.processes import forked

MOST_LAUNCHES = {
    "gqa_1.5B": 1028,
    "mla_1.5B": 1461,
    "relative_1.5B": 1635,
    "moe_0.5Bx8": 3056,
    "nsa_1.5B": 2990,
    "swa_5to1_sinks_1.5B model.layers=6": 398,
    "gqa_1.5B parallel.tp=2 parallel.sp=true": 1575,
    "gqa_1.5B parallel.cp=2": 1896,
    "gqa_1.5B parallel.pp=2": 624,
    "gqa_1.5B parallel.dp=2": 1356,
    "mla_1.5B parallel.tp=2 parallel.sp=true": 2325,
    "moe_0.5Bx8 parallel.ep=2 parallel.dp=2": 3526,
    "moe_0.5Bx8 parallel.tp=2 parallel.sp=true parallel.ep=2 parallel.dp=2": 3858,
}
"""Of a micro-batch and an update, which goes through twice as many parameters for NSA: 3 % above what was counted."""
MOST_OVER_GQA = 3
"""NSA's launches of a micro-batch over GQA's."""
ONE_SEQUENCE = ("training.micro_batch_size=1", "training.global_batch_size=1")
TWO_SEQUENCES = ("training.micro_batch_size=2", "training.global_batch_size=2")
TWO_SEQUENCES_EACH = ("training.micro_batch_size=2", "training.global_batch_size=4")
"""Of two replicas."""
LAYERS = {"moe_0.5Bx8": 24}
"""Layers that send the host how many rows their experts have: by pinned copies that nothing waits for, but where ranks
share the experts out. There the host waits once in each layer, and gives the device the sums of all ranks."""


Step = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def step(fake_gpu: Path) -> Iterator[Step]:
    """`step("gqa_1.5B", "key=value", …)`: what a step of a run asks of the device, see step.py; made once."""
    with forked("step", fake_gpu) as ask:
        yield functools.cache(lambda name, *words: ask(name, "data.trained_vocab_size=4096", *words))


@pytest.mark.proof
@pytest.mark.parametrize("name", MOST_LAUNCHES)
def test_a_step_synchronizes_once_fits_the_plan_and_launches_few_kernels(name: str, step: Step) -> None:
    run_name, *layout = name.split()
    seen = step(run_name, *layout, *(TWO_SEQUENCES_EACH if "parallel.dp=2" in layout else TWO_SEQUENCES))
    assert seen["off_device"] == []
    # The step's one read, of what every rank has sent: see `Trainer.train_step`.
    assert seen["first_read"].startswith("finite.py find: DataDependentOutputException"), seen["first_read"]
    layers = LAYERS.get(run_name, 0)
    shared_out = layers if "parallel.ep=2" in layout else 0
    assert seen["copies_to_host"] == 1 + layers
    assert (seen["copies_to_device"], seen["waits"]) == (shared_out, ["event"] * shared_out)
    assert seen["launches"] < MOST_LAUNCHES[name], seen["most"]
    assert seen["peak_bytes"] == pytest.approx(seen["plan_bytes"], rel=0.03)


@pytest.mark.proof
@pytest.mark.parametrize("length", [2048, 32768])
def test_nsa_launches_at_most_three_times_the_kernels_of_gqa_at_any_length(length: int, step: Step) -> None:
    words = TWO_SEQUENCES if length == 2048 else (*ONE_SEQUENCE, f"training.seq_len={length}")
    gqa, nsa = (step(name, *words) for name in ("gqa_1.5B", "nsa_1.5B"))
    assert nsa["before_update"] <= MOST_OVER_GQA * gqa["before_update"], nsa["most"]
    assert nsa["peak_bytes"] == pytest.approx(nsa["plan_bytes"], rel=0.03)
    # The layers' own: the loss goes over more blocks of a longer text.
    short = [step(name, *TWO_SEQUENCES) for name in ("gqa_1.5B", "nsa_1.5B")]
    assert nsa["before_update"] - gqa["before_update"] == short[1]["before_update"] - short[0]["before_update"]
