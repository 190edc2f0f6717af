"""A step's time as `plan --world` projects it by calibrated rates against the time that it takes, on gloo ranks.

In each round `efficientbench calibrate` measures a small run in one layout of four single-threaded ranks. Then each
layout of another, larger run is projected by that calibration, with the calibration's own step left out, and trained.
None of these shapes and layouts was measured. Last, DP 2 is trained again while others compute on rank 0's core, and
where network namespaces can be made, two hosts calibrate again behind a slowed link: both lie outside the interval.

    python3 tests/benchmarks/projected_step_time.py [--steps 20] [--rounds 3] [--layouts "one rank" "DP 2"] [--write]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest
from replicas.places import two_hosts
from support.cells import write_corpus
from support.command_line import efficientbench
from support.measured import Figure, options, report, seconds
from support.ranks import Ranks
from support.slowed import computing, on_hosts, slow_down
from support.tiny_training import tiny_training

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.planning.basis import ERROR, Calibrated, find_calibration
from efficientbench.planning.step_time import project

SMALL = [
    "model.layers=4",
    "model.hidden_size=256",
    "model.heads=4",
    "model.head_dim=64",
    "model.attention.query_groups=4",
    "model.ffn_hidden_size=768",
    "model.vocab_size=4096",
    "training.seq_len=256",
    "training.micro_batch_size=2",
    "training.global_batch_size=8",
    "training.dtype=fp32",
    "training.steps=1000",
]
CALIBRATED = [*SMALL, "parallel.tp=2", "parallel.dp=2"]
SHAPE = [
    *SMALL,
    "model.hidden_size=384",
    "model.heads=8",
    "model.head_dim=48",
    "model.ffn_hidden_size=1536",
    "model.vocab_size=8192",
    "training.seq_len=512",
    "training.micro_batch_size=1",
]
# Ranks that share cores have nothing to hide a transfer behind.
PLAIN = "parallel.overlap=false"
EXPERTS = ["model.ffn_hidden_size=512", "model.moe.experts=4", PLAIN]
LAYOUTS = {
    "one rank": ("gqa_1.5B", ["parallel.dp=1"]),
    "TP 2": ("gqa_1.5B", ["parallel.dp=1", "parallel.tp=2"]),
    "TP 4": ("gqa_1.5B", ["parallel.dp=1", "parallel.tp=4"]),
    "DP 2": ("gqa_1.5B", ["parallel.dp=2", PLAIN]),
    "DP 4": ("gqa_1.5B", ["parallel.dp=4", PLAIN]),
    "PP 2": ("gqa_1.5B", ["parallel.dp=1", "parallel.pp=2"]),
    "PP 4": ("gqa_1.5B", ["parallel.dp=1", "parallel.pp=4"]),
    "EP 2": ("moe_0.5Bx8", ["parallel.dp=2", "parallel.ep=2", *EXPERTS]),
    "EP 4": ("moe_0.5Bx8", ["parallel.dp=4", "parallel.ep=4", *EXPERTS]),
}


def main() -> None:
    """Print each layout side by side with its interval; exit with 1 where one is off by more than ERROR."""
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each round")
    parser.add_argument("--rounds", type=int, default=3, help="times that rates, then steps are measured")
    parser.add_argument("--seconds", type=int, default=60, help="of a calibration")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    arguments = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in arguments.layouts}
    slowed: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "tokens", 4096, documents=300, length=200)
        for _ in range(arguments.rounds):
            calibrated = calibrate(Path(folder), arguments.seconds)
            for name, found in ratios.items():
                found.append(beside(name, Path(folder), calibrated, arguments.steps))
            if "DP 2" in ratios:
                slowed.append(beside("DP 2", Path(folder), calibrated, arguments.steps, busy=True))
        linked = slowed_link(Path(folder)) if "DP 2" in ratios else None
    figures = {
        name: Figure.with_range(f"measured over projected step time, {name}, gloo ranks", found)
        for name, found in ratios.items()
    }
    off = [name for name, figure in figures.items() if abs(figure.value - 1) > ERROR]
    if slowed:
        figures["slowed core"] = Figure.with_range("the same of DP 2 while others compute on one core", slowed)
    if linked is not None:
        figures["slowed link"] = Figure("two hosts' step behind a slowed link over the interval's end", linked)
    conditions = "float32, one thread a rank; rates of a smaller run on TP 2 × DP 2 measured before, its step left out"
    report(__file__, arguments, figures, conditions)
    sys.exit(int(bool(off)))


def calibrate(folder: Path, seconds: int) -> Calibrated:
    """Measure the small run, and return its calibration without its own step."""
    words = ("gqa_1.5B", "--smoke", *CALIBRATED, f"data.cache={folder}", "--seconds", str(seconds))
    efficientbench("calibrate", *words, expect=0)
    found = find_calibration("cpu", folder, "fp32")
    assert found is not None
    return replace(found, calibration=replace(found.calibration, step_s=None, step_ratio=1.0))


def beside(name: str, folder: Path, calibrated: Calibrated, steps: int, busy: bool = False) -> float:
    """Print a layout's projected and measured time; return measured over projected."""
    run, overrides = LAYOUTS[name]
    config = resolve(run, True, [*SHAPE, f"data.cache={folder}", *overrides])
    layout = Layout.of(config, devices=1, oversubscribe=True)
    projected_s = project(config, layout, calibrated.rates, calibrated).step_time_s
    with closing(Ranks(layout.world_size)) as ranks, slowed(ranks) if busy else nullcontext():
        times = zip(*ranks.call(train, config, folder / "tokens", steps), strict=True)
        measured_s = statistics.median(max(each) for each in times)
    low, high = (factor * projected_s for factor in calibrated.time_factors)
    place = "inside" if low <= measured_s <= high else "OUTSIDE"
    print(
        f"{name}{', one core slowed' if busy else ''}: projected {projected_s:.3f} s ({low:.3f} to {high:.3f}), "
        f"measured {measured_s:.3f} s: {measured_s / projected_s:.3f}, {place}",
        flush=True,
    )
    return measured_s / projected_s


@contextmanager
def slowed(ranks: Ranks) -> Iterator[None]:
    """Pin rank n to core n, and let others compute on the first core."""
    cores = sorted(os.sched_getaffinity(0))
    for rank, process in enumerate(ranks.processes):
        os.sched_setaffinity(process.pid or 0, {cores[rank % len(cores)]})
    with computing(cores[0]):
        yield


def train(config: RunConfig, prefix: Path, steps: int) -> list[float]:
    """Return the time of each step on this rank, in s, after two that are not counted."""
    from efficientbench.training import groups

    times: list[float] = []
    with tiny_training(config, prefix, steps=1000) as trainer:
        for step in range(1, steps + 3):
            groups.barrier()
            times.append(seconds(partial(trainer.train_step, step)))
    return times[2:]


def slowed_link(folder: Path) -> float | None:
    """Calibrate two hosts, slow the link between them, and calibrate again; print what the second one says.

    Return the step behind the slowed link over the end of the interval by the first calibration; None where network
    namespaces cannot be made.
    """
    try:
        with two_hosts() as hosts:
            cache = folder / "hosts"
            words = ("calibrate", "gqa_1.5B", "dlc", "--smoke", *SMALL, "parallel.dp=2", PLAIN, f"data.cache={cache}")
            on_hosts(hosts, *words)
            found = find_calibration("cpu", cache, "fp32")
            slow_down(hosts[0], mbit=50)
            said = on_hosts(hosts, *words)
            now = find_calibration("cpu", cache, "fp32")
    except pytest.skip.Exception as reason:
        print(f"slowed link: n/a; {reason}")
        return None
    print("slowed link:", *(line for line in said.splitlines() if line.startswith("by the calibration of ")))
    assert found is not None
    assert found.calibration.step_s is not None
    assert now is not None
    assert now.calibration.step_s is not None
    # The first run's own step is its projection.
    return now.calibration.step_s[0] / (found.time_factors[1] * found.calibration.step_s[0])


if __name__ == "__main__":
    main()
