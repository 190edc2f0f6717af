r"""Which architecture and width of weights costs least at which context and batch, from records that were measured.

Measure first, then call; smoke-sized and 0.5B shapes with random weights, and a trained run's folder beside them:

    efficientbench generate gqa_0.5B,mla_0.5B --measure --weights none,int8,int4 --prompt-tokens 64,256 \
        --batch 1 --max-new-tokens 16 --repeats 3 training.dtype=bf16 output=output/bits_map
    efficientbench generate gqa_0.5B,mqa_0.5B,mla_0.5B --smoke --measure --weights none,int8,int4 \
        --prompt-tokens 128,512,2048 --batch 1,4 --max-new-tokens 16 --repeats 3 training.dtype=bf16 \
        output=output/bits_map
    efficientbench generate output/bits_map/RUN --measure --weights none,int8,int4 --prompt-tokens 16,64 \
        --batch 1,4 --max-new-tokens 16 --repeats 3
    python tests/benchmarks/bits_map.py output/bits_map [--write]

With `--write` it writes docs/measured/bits_map.json: a row of each context and batch, and the crossings. Bytes that
the formulas count must be within 5 % of those in memory, and every measurement completed, or it fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content

from efficientbench.config.quantization import FULL, split_quantization
from efficientbench.config.schema import RunConfig
from efficientbench.costs.quantization import weight_bytes
from efficientbench.devices.quantized import form_of
from efficientbench.devices.registry import find_device
from efficientbench.metrics.records.generation.generation import GenerationRecord, load_generations
from efficientbench.metrics.report.sections.crossings import NO_CROSSING, crossing_tables
from efficientbench.metrics.report.table import Table

TOLERANCE = 0.05


def formula_off(record: GenerationRecord, device_type: str) -> float:
    """Return by which part the formula's bytes of the weights differ from those that were counted in memory."""
    config = RunConfig.model_validate(record.config)
    name = record.quantization.removesuffix("_asymmetric")
    width, _, group = name.partition("_g")
    keys = [f"quantization.symmetric={name == record.quantization}"]
    keys += [f"quantization.group={group}"] if group else []
    quantization = split_quantization(width, () if width == FULL else keys)[0]
    form = None if quantization is None else form_of(quantization, device_type, record.dtype)
    assert record.weight_bytes is not None
    return abs(weight_bytes(config.model, record.dtype, form) / record.weight_bytes - 1)


def cells(tables: Sequence[Table]) -> list[dict[str, str]]:
    """Return the tables' rows by their titles; of several tables with what each was measured on."""
    several = len(tables) > 1
    return [
        {**({"on": table.title.partition(": ")[2]} if several else {}), **dict(zip(table.header, row, strict=True))}
        for table in tables
        for row in table.rows
    ]


def main() -> None:
    """Print the map and the crossings; with `--write`, write them for the docs."""
    parser = options(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu", help="the type of device that was measured")
    arguments = parser.parse_args()
    records, unread = load_generations(arguments.folder)
    unread += [f"{each.run} {each.quantization}: {each.status}" for each in records if each.status != "completed"]
    if unread:
        sys.exit("\n".join([f"{arguments.folder}: not every measurement is complete:", *unread]))
    tables = crossing_tables(records)
    if not tables:
        sys.exit(f"{arguments.folder}: no two models or widths were measured at two contexts or batches")
    off = max(formula_off(record, arguments.device) for record in records)
    rows, crossed = cells(tables[::2]), cells(tables[1::2])
    # A table without rows notes it, and others may have some.
    notes = [note for note in dict.fromkeys(note for table in tables for note in table.notes) if note != NO_CROSSING]
    notes += [] if crossed else [NO_CROSSING]
    crossed = crossed or [{"crossings": NO_CROSSING}]
    print(*rows, *crossed, *notes, f"formula of the weights' bytes: {off:.2%} off at most", sep="\n")
    if off > TOLERANCE:
        sys.exit(f"the formula of the weights' bytes is {off:.1%} off")
    if arguments.write:
        repeats = min(row.decode.repeats for record in records for row in record.rows if row.decode is not None)
        names = ", ".join(dict.fromkeys(f"{each.run}{' (smoke)' if each.smoke else ''}" for each in records))
        conditions = f"{names}; one process after another, at least {repeats} requests of each row after one of warm-up"
        note = f"{' '.join(notes)} The formula of the weights' bytes is {off:.2%} off at most."
        content = {"conditions": conditions, "note": note, "rows": rows, "crossings": crossed}
        write_content(__file__, find_device(arguments.device), content)


if __name__ == "__main__":
    main()
