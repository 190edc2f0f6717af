"""The table of runs that the front page shows, from the records of runs that were made before.

Make runs first, like `bash experiments/attention_variants/run_gqa_1.5B.sh --smoke`, then call:

    python tests/benchmarks/smoke_runs.py output/efficientllm_benchmark [--write]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content

from efficientbench.devices.registry import find_device
from efficientbench.metrics.records.record import RunRecord, load_records


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
        conditions = "; ".join(f"{each.run}: {each.dtype}, sequence {each.seq_len}" for each in records)
        write_content(__file__, find_device(arguments.device), {"conditions": conditions, "rows": rows})


def row(record: RunRecord) -> dict[str, str]:
    """Return the cells of one run by their titles."""
    spread = "" if record.al_s is None else f"{record.al_s * 1e3:.0f}"
    if record.al_s and record.al_s_ci_high is not None:
        spread += f" ± {(record.al_s_ci_high - record.al_s) / record.al_s:.1%}".replace("%", " %")
    return {
        "run": f"{record.run}{' (smoke)' if record.smoke else ''}",
        "parameters": f"{record.parameters / 1e6:,.2f} M",
        "tokens/s": _number(record.tokens_per_s, ",.0f"),
        "AL, ms/step": spread or "n/a",
        "AMU, GB": _number(record.amu_gb, ".2f"),
        "PCU": _number(record.pcu, ".0%").replace("%", " %"),
        "AEC, W": _number(record.aec_w, ",.0f"),
        "validation loss": _number(record.validation_loss, ".3f"),
        "bits/byte": _number(record.bits_per_byte, ".3f"),
    }


def _number(value: float | None, shape: str) -> str:
    return "n/a" if value is None else f"{value:{shape}}"


if __name__ == "__main__":
    main()
