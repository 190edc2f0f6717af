"""The table of runs that the front page shows, from the records of runs that were made before.

Make runs first, like `bash experiments/attention_variants/run_gqa_1.5B.sh --smoke`, then call:

    python tests/benchmarks/smoke_runs.py output/efficientllm_benchmark [--write]
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content

from efficientbench.devices.registry import find_device
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import is_least, name, relative_interval


def main() -> None:
    """Print a row for each completed run; with `--write`, write them for the docs."""
    parser = options(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu", help="the type of device that the runs used")
    arguments = parser.parse_args()
    records = [record for record in load_records(arguments.folder)[0] if record.status == "completed"]
    rows = [row(record) for record in records]
    for each in rows:
        print(each)
    if arguments.write:
        content = {"conditions": conditions(records), "note": "; ".join(notes(records)), "rows": rows}
        write_content(__file__, find_device(arguments.device), content)


def row(record: RunRecord) -> dict[str, str]:
    """Return the cells of one run by their titles."""
    time_ms = "n/a" if record.al_s is None else f"{record.al_s * 1e3:.0f}"
    if (noise := relative_interval(record)) is not None:
        time_ms += f" {'≥' if is_least(record) else ''}± {noise:.1%}".replace("%", " %")
    return {
        "run": name(record),
        "parameters": "n/a" if record.parameters is None else f"{record.parameters / 1e6:,.2f} M",
        "tokens/s": _number(record.tokens_per_s, ",.0f"),
        "AL, ms/step": time_ms,
        "AMU, GB": _number(record.amu_gb, ".2f"),
        "PCU": _number(record.pcu, ".0%").replace("%", " %"),
        "AEC, W": _number(record.aec_w, ",.0f"),
        "validation loss": _number(record.validation_loss, ".3f"),
        "bits/byte": _number(record.bits_per_byte, ".3f"),
    }


def conditions(records: list[RunRecord]) -> str:
    """Return how the runs were made, in one line."""
    dtypes = " and ".join(sorted({record.dtype for record in records}))
    usual = statistics.mode(record.seq_len for record in records)
    others = "".join(f", of {each.run} {each.seq_len}" for each in records if each.seq_len != usual)
    return f"smoke runs, one each, {dtypes}; sequences of {usual} tokens{others}"


def notes(records: list[RunRecord]) -> list[str]:
    """Return what a reader must know of the cells."""
    found = ["AEC is n/a: " + record.unavailable["aec_w"] for record in records if record.aec_w is None]
    if any(record.speed_only_reason for record in records):
        found.append("speed only: too little text for a loss to say something of an architecture")
    entropies = {record.unigram_entropy for record in records} - {None}
    found += [f"the text's unigram entropy is {entropy:.3f} nats" for entropy in entropies]
    return list(dict.fromkeys(found))


def _number(value: float | None, shape: str) -> str:
    return "n/a" if value is None else f"{value:{shape}}"


if __name__ == "__main__":
    main()
