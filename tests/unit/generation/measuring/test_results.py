"""The table of a measurement of generation: what is in doubt stands below it."""

from __future__ import annotations

from rich.console import Console
from support.generated import generation, phase, row

from efficientbench.generation.measuring.results import print_results
from efficientbench.metrics.formulas.device_use import Disturbance


def test_doubts_and_other_processes_are_printed_below_the_table() -> None:
    decode = phase(0.05, 8, joules=3.0, energy_doubt="it counted 3 J [of 9]")
    prefill = phase(0.05, 1024, joules=0.1, disturbances=[Disturbance("GPU-0", 0.0, 1.0, "process 7")])
    console = Console(width=160)
    with console.capture() as captured:
        print_results(
            generation("gqa", rows=[row("gqa", 128, 1), row("gqa", 128, 8, decode=decode, prefill=prefill)]), console
        )
    told = [line for line in captured.get().splitlines() if line.startswith("prompt 128,")]
    assert told == [
        "prompt 128, batch 8, prefill: another process used the device meanwhile",
        "prompt 128, batch 8, decode: it counted 3 J [of 9]",
    ]
