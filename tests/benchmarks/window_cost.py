"""What an attention layer with a window costs on a CPU, beside one that sees all: time and memory, fitted to c · S^a.

    python tests/benchmarks/window_cost.py [--write]

One layer of the 50M (width 512, 8 heads) with its projections, forward and backward, float32, one thread, one sequence.
Times are those of the processor, which other processes do not lengthen much. Each measurement has a process of its own.
Exit code 1: time or memory of a window of 512 grows faster than S^1.1, or takes more than a third of full attention's
time at 16,384 tokens. Of a window of 128, the projections and the memory's pages are most of the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attention_scaling import exponent, measure
from support.measured import Figure, options, report

SEQUENCES = (4096, 8192, 16_384, 32_768)
LAYERS = {"window 128": 128, "window 512": 512, "window 1,024": 1024, "full": None}
COMPARED_AT = 16_384
JUDGED, MOST_EXPONENT, MOST_SHARE = "window 512", 1.1, 1 / 3


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("LAYER", "SEQUENCE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, sequence = arguments.measure
        words = ("model.attention.query_groups=8",)
        words += (f"model.attention.window={LAYERS[name]}",) if LAYERS[name] else ()
        print(json.dumps(measure("gqa_50M", int(sequence), 1, words, cpu_seconds)))
        return
    found = {name: {length: in_a_process(name, length) for length in lengths(name)} for name in LAYERS}
    figures: dict[str, Figure] = {}
    fast_enough = True
    for name, by_length in found.items():
        for length, each in by_length.items():
            figures[f"{name} time {length}"] = Figure(f"{name}: time at {length:,} tokens", each["time"], "s")
        if LAYERS[name]:
            for part in ("time", "memory"):
                grows = exponent({length: each[part] for length, each in by_length.items()})
                figures[f"{name} {part} exponent"] = Figure(f"{name}: {part} grows as S^a: a", grows)
                fast_enough = fast_enough and (grows <= MOST_EXPONENT or name != JUDGED)
            share = by_length[COMPARED_AT]["time"] / found["full"][COMPARED_AT]["time"]
            what = f"{name}: time at {COMPARED_AT:,} tokens, of full attention's"
            figures[f"{name} share"] = Figure(what, share)
            fast_enough = fast_enough and (share <= MOST_SHARE or name != JUDGED)
    conditions = "one layer of the 50M (width 512, 8 heads, 8 groups) with its projections, forward and backward, "
    report(__file__, arguments, figures, f"{conditions}float32, one sequence, one thread's processor time")
    sys.exit(not fast_enough)


def lengths(name: str) -> tuple[int, ...]:
    """Return the lengths to measure: of full attention those up to the one at which windows are compared with it."""
    return SEQUENCES if LAYERS[name] else tuple(each for each in SEQUENCES if each <= COMPARED_AT)


def in_a_process(name: str, length: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", name, str(length)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(f"{name}, {length:,} tokens: {found['time']:.3g} s, {found['memory']:,.0f} MB", flush=True)
    return found


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call in this process."""
    begin_s = time.process_time()
    work()
    return time.process_time() - begin_s


if __name__ == "__main__":
    main()
