"""List what published comparisons of architectures claim, and what each rests on, beside our own ladder.

    python tests/benchmarks/published_claims.py [--write]

The claims lie in `shared/data/public_runs/paper_claims.csv`, and are repeated as they stand there. What our own ladder
says of the same variants is in `published_ranks.py`. Exit status 1: that file is not there.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU

CLAIMS = ROOT.parent / "shared" / "data" / "public_runs" / "paper_claims.csv"
IN_OUR_LADDER = ("MLA best, MQA worst in quality",)
"""How the claims begin that compare variants of our own ladder: gqa with mla."""


def sources(claims: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the source of each claim; the file of the claim before is not named again."""
    before = ""
    for each in claims:
        file, _, passage = each["source"].partition(" ")
        yield each["source"] if file != before else f"the same file, {passage}"
        before = file


def main() -> None:
    arguments = options(__doc__).parse_args()
    if not CLAIMS.exists():
        sys.exit(f"{CLAIMS}: there is no such file")
    with CLAIMS.open(encoding="utf-8", newline="") as stream:
        claims = list(csv.DictReader(stream))
    table = [
        {**{key: each[key] for key in ("claim", "figure", "scale", "seeds")}, "source": source}
        for each, source in zip(claims, sources(claims), strict=True)
    ]
    silent = sum(each["seeds"].startswith("not stated") for each in claims)
    own = sum(each["claim"].startswith(IN_OUR_LADDER) for each in claims)
    conditions = f"{len(claims)} claims; {silent} state no number of seeds; {own} compares variants of our own ladder"
    print(*table, conditions, sep="\n")
    if arguments.write:
        write_content(__file__, CPU(), {"conditions": conditions, "rows": table})


if __name__ == "__main__":
    main()
