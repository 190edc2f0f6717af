r"""A table of models that generate, from records that were measured before: of attentions, or of hybrids.

Measure first, then call:

    efficientbench generate mqa_0.5B,gqa_0.5B,mla_0.5B,nsa_0.5B --measure --prompt-tokens 128,1024 --batch 1 \
        --max-new-tokens 32 --repeats 3 training.dtype=fp32 output=output/attentions
    python tests/benchmarks/attentions_generating.py output/attentions [--write]

    efficientbench generate gqa_50M,swa_3to1_50M,gdn_3to1_50M,kda_3to1_50M,mamba2_3to1_50M,gdn_50M,mamba2_50M \
        --measure --prompt-tokens 512,2048,8192,16384 --batch 1 --max-new-tokens 16 --repeats 3 \
        training.dtype=fp32 output=output/hybrids
    python tests/benchmarks/attentions_generating.py output/hybrids --name hybrids_generating [--write] \
        --columns run prompt "prefill tokens/s" "decode tokens/s" "±95%" "cache, MB"
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content

from efficientbench.devices.registry import find_device
from efficientbench.metrics.records.generation.generation import load_generations
from efficientbench.metrics.report.sections.generation import NO_TRAINING, beside, generation_table


def main() -> None:
    """Print a row for each combination; with `--write`, write them for the docs."""
    parser = options(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", help="the file's name in docs/measured, unless it is the script's")
    parser.add_argument("--columns", nargs="+", help="the columns of the docs' table; unset, all")
    parser.add_argument("--device", default="cpu", help="the type of device that was measured")
    arguments = parser.parse_args()
    records = load_generations(arguments.folder)[0]
    table = generation_table(beside(records, []), [])
    rows = [
        {
            name: cell
            for name, cell in zip(table.header, row, strict=True)
            if name in (arguments.columns or table.header)
        }
        for row in table.rows
    ]
    notes = [note for note in table.notes if not note.endswith(NO_TRAINING)]
    print(*rows, *notes, sep="\n")
    repeats = {row.decode.repeats for record in records for row in record.rows if row.decode is not None}
    if not repeats:
        sys.exit(f"{arguments.folder}: no combination was measured")
    if arguments.write:
        conditions = f"models one after another, at least {min(repeats)} requests of each row after one of warm-up"
        content = {"conditions": conditions, "note": " ".join(notes), "rows": rows}
        write_content(__file__, find_device(arguments.device), content, arguments.name)


if __name__ == "__main__":
    main()
