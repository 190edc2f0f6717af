"""How long `bash launchers/speedrun.sh --smoke` takes on this CPU, from the embedded text to the report card.

    python tests/benchmarks/smoke_speedrun.py FOLDER [--write]

FOLDER must be new, so that every stage is made. It fails where a stage has no completed record, or all stages together
take eight minutes or more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from replicas.places import job_environment
from support.measured import Figure, options, report, seconds
from support.repository import ROOT

from efficientbench.metrics.records.record import read_record

MINUTES = 8
STAGES = ("base", "mid", "sft", "rl")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    work: Path = arguments.folder.absolute()
    work.mkdir(parents=True)
    command = ["bash", str(ROOT / "launchers" / "speedrun.sh"), "--smoke", "--work", str(work)]
    # All threads, as the commands choose by themselves.
    environment = {name: value for name, value in job_environment().items() if name != "OMP_NUM_THREADS"}
    time_s = seconds(lambda: subprocess.run(command, check=True, env=environment))
    folders = {path.name.partition("_")[0]: path for path in (work / "runs").glob("*_smoke")}
    records = {stage: read_record(next(folders[stage].glob("seed_*/record.json"))) for stage in STAGES}
    assert all(record.status == "completed" for record in records.values()), records
    figures = {"time": Figure("all stages, from text to the report card", time_s, "s")}
    report(__file__, arguments, figures, "bash launchers/speedrun.sh --smoke, after the set-up")
    if time_s >= 60 * MINUTES:
        sys.exit(f"it took {time_s:.0f} s, and is to take less than {MINUTES} minutes")


if __name__ == "__main__":
    main()
