"""What a new token reads of its past in models with layers of several kinds, by the formula and counted; no time.

    python tests/benchmarks/hybrids_reading.py [--write]

Counted on a CPU, in one pattern of four layers of the 1.5B in bf16: each byte of the cache that a step reads, and of a
recurrent state each that it writes. Counted on a CUDA device without memory and numbers (tests/replicas/fake_cuda), in
all 28 layers with 8 rows: launches, and what they read and write, weights and what lies between operations included.
Exit code 1: a model reads less than gqa from another length on than by the formula.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from replicas.fake_cuda import processes
from support.measured import options, write_content
from support.reads import read_by_a_step
from support.single_rank import world_of_one_rank

from efficientbench.config.load import resolve
from efficientbench.costs.generation import cache_bytes_read
from efficientbench.devices.cpu import CPU

BASELINE, SIZE = "gqa", "1.5B"
OTHERS = ("swa_3to1", "gdn_3to1", "kda_3to1", "mamba2_3to1", "gdn", "mamba2")
LENGTHS = (512, 2048, 8192, 16_384)
PATTERN = ("model.layers=4", "model.vocab_size=64", "model.ffn_hidden_size=64", "training.dtype=bf16")
"""Overrides for one pattern of layers, whose cache alone is counted."""

Bytes = Callable[[int], int]
"""Tokens of a sequence, the new one included → bytes of its cache that the step reads."""


def main() -> None:
    arguments = options(__doc__).parse_args()
    names = (BASELINE, *OTHERS)
    with world_of_one_rank():
        read = {name: (by_formula(name), counted(name)) for name in names}
        below = [
            {"layers": name, "by the formula": f"{expected:,}", "counted": f"{found:,}"}
            for name in OTHERS
            for expected, found in [[first_below(*pair) for pair in zip(read[name], read[BASELINE], strict=True)]]
        ]
        megabytes = {
            (name, length): [f"{each(length) / 1e6:.2f}" for each in read[name]] for name in names for length in LENGTHS
        }
    with tempfile.TemporaryDirectory() as folder:
        library = processes.build(Path(folder))
        steps = {name: on_a_device(library, name) for name in names}
    rows = [
        {
            **{"layers": name, "tokens": f"{length:,}", "by the formula, MB": expected, "counted, MB": found},
            "launches": f"{steps[name][length]['launches']:,}",
            "read and written, GB": f"{steps[name][length]['moved_bytes'] / 1e9:.2f}",
        }
        for (name, length), (expected, found) in megabytes.items()
    ]
    print(*rows, *below, sep="\n")
    if arguments.write:
        conditions = f"MB of the cache: a row, one pattern of four layers of the {SIZE}, bf16, counted on a CPU; "
        conditions += "launches and GB: 8 rows, all layers, weights too, on a fake CUDA device; no time is known"
        write_content(__file__, CPU(), {"conditions": conditions, "rows": rows, "below": below})
    sys.exit(any(each["counted"] != each["by the formula"] for each in below))


def by_formula(name: str) -> Bytes:
    model = resolve(f"{name}_{SIZE}", overrides=PATTERN).model
    return lambda length: cache_bytes_read(model, length, "bf16")


def counted(name: str) -> Bytes:
    """Count by steps of a model."""
    from efficientbench.model.gpt import build_stages

    [model] = build_stages(resolve(f"{name}_{SIZE}", overrides=PATTERN), torch.device("cpu"))
    model.eval()
    return functools.cache(lambda length: read_by_a_step(model, 1, length, length)[1])


def first_below(read: Bytes, of_baseline: Bytes) -> int:
    """Return the length from which on `read` is less."""
    return 1 + bisect_left(range(1, LENGTHS[-1] + 1), True, key=lambda length: read(length) < of_baseline(length))


def on_a_device(library: Path, name: str) -> dict[int, dict[str, Any]]:
    """Return what the fake device counted of the steps that make sequences so long."""
    # It counts the second step after so many tokens.
    seen = processes.run("decode.py", library, f"{name}_{SIZE}", *(str(length - 2) for length in LENGTHS))
    return dict(zip(LENGTHS, seen["steps"], strict=True))


if __name__ == "__main__":
    main()
