"""A step's time as `plan --world` projects it by calibrated rates against the time that it takes, on gloo ranks.

In each round `efficientbench calibrate` measures a small run in one layout of four single-threaded ranks. Then each
layout of another, larger run is projected by that calibration, with the calibration's own step left out, and trained.
None of these shapes and layouts was measured. Last, DP 2 is trained again while others compute on rank 0's core, and
where network namespaces can be made, two hosts calibrate again behind a slowed link: both lie outside the interval.
With `--write` the figures so far are written after each round, and where something ends the script.

    python3 tests/benchmarks/projected_step_time.py [--steps 3] [--rounds 2] [--layouts "one rank" "DP 2"] [--write]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
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
    "training.global_batch_size=4",
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
CONDITIONS = "float32, one thread a rank; rates of a smaller run on TP 2 × DP 2 measured before, its step left out"


def main() -> None:
    """Print each layout side by side with its interval; exit with 1 where one is off by more than ERROR."""
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a layout in each round")
    parser.add_argument("--rounds", type=int, default=2, help="times that rates, then steps are measured")
    parser.add_argument("--seconds", type=int, default=30, help="of a calibration")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_corpus(folder / "tokens", 4096, documents=300, length=200)
        layouts = [Laid(each, folder) for each in arguments.layouts]
        sizes = {each.layout.world_size for each in layouts}
        # A rank takes longer to start than a layout to be measured.
        worlds = {size: stack.enter_context(closing(Ranks(size))) for size in sizes}
        for world in worlds.values():
            # Up before anything is measured: what they import takes the cores.
            world.call(os.getpid)
        figures: dict[str, Figure] = {}
        try:
            for _ in range(arguments.rounds):
                calibrated = calibrate(folder, arguments.seconds)
                for laid in layouts:
                    laid.measure(worlds, calibrated, arguments.steps)
                    figures |= figures_of([each for each in layouts if each.found])
                report(__file__, arguments, figures, CONDITIONS)
            if "DP 2" in arguments.layouts:
                slowed(figures, worlds[2], Laid("DP 2", folder), calibrated)
                slowed_link(figures, folder)
        finally:
            # What ends the script early leaves what was measured before.
            if figures:
                report(__file__, arguments, figures, CONDITIONS)
    sys.exit(int(any(abs(figures[name].value - 1) > ERROR for name in arguments.layouts)))


def figures_of(layouts: Sequence[Laid]) -> dict[str, Figure]:
    """Return the figures of layouts that were measured."""
    figures = {each.name: Figure.with_range(f"measured / projected, {each.name}", each.ratios) for each in layouts}
    inside = [low <= ratio <= high for each in layouts for ratio, low, high in each.found]
    share = Figure(
        "share of steps inside the projection's range", sum(inside) / len(inside), n=len(inside), n_of="steps"
    )
    return figures | {"inside": share}


def calibrate(folder: Path, seconds: int) -> Calibrated:
    """Measure the small run, and return its calibration without its own step."""
    words = ("gqa_1.5B", "--smoke", *CALIBRATED, f"data.cache={folder}", "--seconds", str(seconds))
    efficientbench("calibrate", *words, expect=0)
    found = find_calibration("cpu", folder, "fp32")
    assert found is not None
    return replace(found, calibration=replace(found.calibration, step_s=None, step_ratio=1.0))


class Laid:
    """The larger run in one layout, and how its steps stood to their projection in each round."""

    def __init__(self, name: str, folder: Path) -> None:
        run, overrides = LAYOUTS[name]
        self.name, self.tokens = name, folder / "tokens"
        self.config = resolve(run, True, [*SHAPE, f"data.cache={folder}", *overrides])
        self.layout = Layout.of(self.config, devices=1, oversubscribe=True)
        self.found: list[tuple[float, float, float]] = []
        """Measured over projected, and the ends of the projection's range over the projection."""

    @property
    def ratios(self) -> list[float]:
        """Measured over projected, of each round."""
        return [ratio for ratio, _, _ in self.found]

    def measure(self, worlds: Mapping[int, Ranks], calibrated: Calibrated, steps: int) -> None:
        """Print, and keep, projected and measured time."""
        projected_s = project(self.config, self.layout, calibrated.rates, calibrated).step_time_s
        times = worlds[self.layout.world_size].call(train, self.config, self.tokens, steps)
        measured_s = statistics.median(max(each) for each in zip(*times, strict=True))
        ratio, (low, high) = measured_s / projected_s, calibrated.time_factors
        self.found.append((ratio, low, high))
        place = "inside" if low <= ratio <= high else "OUTSIDE"
        print(
            f"{self.name}: projected {projected_s:.3f} s ({low:.2f} to {high:.2f} times that), "
            f"measured {measured_s:.3f} s: {ratio:.3f}, {place}",
            flush=True,
        )


def slowed(figures: dict[str, Figure], ranks: Ranks, laid: Laid, calibrated: Calibrated) -> None:
    """Pin rank n to core n, let others compute on the first core, and measure; the ranks stay pinned."""
    cores = sorted(os.sched_getaffinity(0))
    for rank, process in enumerate(ranks.processes):
        os.sched_setaffinity(process.pid or 0, {cores[rank % len(cores)]})
    with computing(cores[0]):
        laid.measure({len(ranks.processes): ranks}, calibrated, steps=1)
    ratio, _, high = laid.found[0]
    figures["slowed core"] = Figure("DP 2 beside others on a core, over the range's end", ratio / high)


def train(config: RunConfig, prefix: Path, steps: int) -> list[float]:
    """Return the time of each step on this rank, in s, after two that are not counted."""
    import torch.distributed as dist

    times: list[float] = []
    with tiny_training(config, prefix, steps=1000) as trainer:
        for step in range(1, steps + 3):
            dist.barrier()
            times.append(seconds(partial(trainer.train_step, step)))
    return times[2:]


def slowed_link(figures: dict[str, Figure], folder: Path) -> None:
    """Calibrate two hosts, slow the link between them, calibrate again, and print what the second one says.

    Network namespaces are the hosts; where they cannot be made there is no figure.
    """
    cache = folder / "hosts"
    words = ("calibrate", "gqa_1.5B", "dlc", "--smoke", *SMALL, "parallel.dp=2", PLAIN, f"data.cache={cache}")
    try:
        with two_hosts() as hosts:
            on_hosts(hosts, *words, "--seconds", "10")
            first = find_calibration("cpu", cache, "fp32")
            slow_down(hosts[0], mbit=300)
            said = on_hosts(hosts, *words, "--seconds", "10")
            now = find_calibration("cpu", cache, "fp32")
    except pytest.skip.Exception as reason:
        print(f"slowed link: n/a; {reason}")
        return
    print("slowed link:", *(line for line in said.splitlines() if line.startswith("by the calibration of ")))
    assert first is not None
    assert now is not None
    steps = [each.calibration.step_s for each in (first, now)]
    assert steps[0] is not None
    assert steps[1] is not None
    # The first run's own step is its projection.
    ratio = steps[1][0] / (first.time_factors[1] * steps[0][0])
    figures["slowed link"] = Figure("two hosts behind a slowed link, over the range's end", ratio)


if __name__ == "__main__":
    main()
