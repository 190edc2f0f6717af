"""List what published comparisons of architectures claim, and what each rests on, beside our own ladder.

    python tests/benchmarks/published_claims.py [--write]

The claims lie in `shared/data/public_runs/paper_claims.csv`, and are repeated as they stand there. The column of our
own ladder is open until it has been trained. Exit status 1: that file is not there.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU

CLAIMS = ROOT.parent / "shared" / "data" / "public_runs" / "paper_claims.csv"
NOT_RUN, NOT_IN_IT = "not run yet", "not in it"
IN_OUR_LADDER = ("MLA best, MQA worst in quality",)
"""How the claims begin that compare variants of our own ladder: gqa with mla."""


def main() -> None:
    arguments = options(__doc__).parse_args()
    if not CLAIMS.exists():
        sys.exit(f"{CLAIMS}: there is no such file")
    with CLAIMS.open(encoding="utf-8", newline="") as stream:
        claims = list(csv.DictReader(stream))
    table = [
        {
            **{key: each[key] for key in ("claim", "figure", "seeds", "source")},
            "our ladder": NOT_RUN if each["claim"].startswith(IN_OUR_LADDER) else NOT_IN_IT,
        }
        for each in claims
    ]
    silent = sum(each["seeds"].startswith("not stated") for each in claims)
    own = sum(row["our ladder"] == NOT_RUN for row in table)
    conditions = f"{len(claims)} claims; {silent} state no number of seeds; {own} compares variants of our own ladder"
    print(*table, conditions, sep="\n")
    if arguments.write:
        write_content(__file__, CPU(), {"conditions": conditions, "rows": table})


if __name__ == "__main__":
    main()
