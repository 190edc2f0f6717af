"""List what published comparisons of architectures claim, and what each rests on, beside our own ladder.

    python tests/benchmarks/published_claims.py [--write]

The claims lie in `shared/data/public_runs/paper_claims.csv`, and are repeated as they stand there. Our own ladder is
that of `mini_study.py`, as far as its repetitions are measured. Exit status 1: that file is not there.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import MEASURED, options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU

CLAIMS = ROOT.parent / "shared" / "data" / "public_runs" / "paper_claims.csv"
NOT_RUN, NOT_IN_IT = "not run yet", "not in it"
IN_OUR_LADDER = ("MLA best, MQA worst in quality",)
"""How the claims begin that compare variants of our own ladder: gqa with mla."""


def our_ladder() -> str:
    """Return what the measured repetitions of the ladder say of mla against gqa, at the ladder's target."""
    told = []
    for path in sorted(MEASURED.glob("mini_study_*.json")):
        (row,) = (each for each in json.loads(path.read_text(encoding="utf-8"))["rows"] if each["variant"] == "mla")
        told.append(f"mla {row['predicted']:+.3f} nats ({row['low']:+.3f} to {row['high']:+.3f})")
    return "; ".join(told) or NOT_RUN


def main() -> None:
    arguments = options(__doc__).parse_args()
    if not CLAIMS.exists():
        sys.exit(f"{CLAIMS}: there is no such file")
    with CLAIMS.open(encoding="utf-8", newline="") as stream:
        claims = list(csv.DictReader(stream))
    table = [
        {
            **{key: each[key] for key in ("claim", "figure", "seeds", "source")},
            "our ladder": our_ladder() if each["claim"].startswith(IN_OUR_LADDER) else NOT_IN_IT,
        }
        for each in claims
    ]
    silent = sum(each["seeds"].startswith("not stated") for each in claims)
    own = sum(row["our ladder"] != NOT_IN_IT for row in table)
    conditions = f"{len(claims)} claims; {silent} state no number of seeds; {own} compares variants of our own ladder"
    print(*table, conditions, sep="\n")
    if arguments.write:
        write_content(__file__, CPU(), {"conditions": conditions, "rows": table})


if __name__ == "__main__":
    main()
