"""State published speeds as the planner can, and split them in halves, before anything is fitted to them.

    python tests/benchmarks/published_split.py [--write]

Of the rows that are stated, `tests/benchmarks/published_speeds.py` fits the planner's efficiencies to one half, and
shows their error on the other. A hash of what is planned decides, never a speed; rows that state the same run come into
the same half. The rows lie in `shared/data/public_runs/speeds.csv`. Exit status 1: that file is not there.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content
from support.published import FIT, HELD_OUT, SPEEDS, read

from efficientbench.devices.cpu import CPU


def main() -> None:
    arguments = options(__doc__).parse_args()
    if not SPEEDS.exists():
        sys.exit(f"{SPEEDS}: there is no such file")
    stated, reasons = read()
    counts = Counter((each.group, each.half) for each in stated)
    groups = sorted({each.group for each in stated})
    halves = [{"rows": group, FIT: str(counts[group, FIT]), HELD_OUT: str(counts[group, HELD_OUT])} for group in groups]
    left_out = [
        {"rows": str(len(rows)), "why they are not stated": reason}
        for reason, rows in sorted(reasons.items(), key=lambda each: -len(each[1]))
    ]
    total = len(stated) + sum(map(len, reasons.values()))
    conditions = f"{len(stated)} of {total} rows are stated, {counts_of(counts, FIT)} to fit, the others held out"
    print(conditions, *halves, *left_out, sep="\n")
    if arguments.write:
        content = {"conditions": conditions, "halves": halves, "left_out": left_out, "numbers_left_out": reasons}
        write_content(__file__, CPU(), content | {"stated": [asdict(each) for each in stated]})


def counts_of(counts: Counter[tuple[str, str]], half: str) -> int:
    """Return the number of rows in a half."""
    return sum(count for (_, each), count in counts.items() if each == half)


if __name__ == "__main__":
    main()
