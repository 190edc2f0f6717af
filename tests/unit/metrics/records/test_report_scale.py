"""A report on a thousand runs: its time and its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.repository import ROOT
from support.synthetic_runs import gpu_run

from efficientbench.basics.checksum import with_checksum
from efficientbench.metrics.records.record import RECORD_NAME, read_record, write_record

RUNS = 1000
STEPS = 10_000
READ = 100


# A small process between, since a process begins with the peak memory of the one that starts it.
MEASURE = """
import os, subprocess, sys, time
begin_s = time.monotonic()
done = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(done.pid, 0)
print(time.monotonic() - begin_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.proof
@pytest.mark.alone
def test_a_thousand_records_of_ten_thousand_steps_take_2_5_times_their_reading_and_1_gb(tmp_path: Path) -> None:
    write_record(gpu_run("gqa", "1.5B", steps=STEPS), tmp_path / "first" / RECORD_NAME)
    assert read_record(tmp_path / "first" / RECORD_NAME).steps_measured == STEPS
    content = json.loads((tmp_path / "first" / RECORD_NAME).read_text())
    for place in range(1, RUNS):
        folder = tmp_path / f"run_{place}"
        folder.mkdir()
        other = with_checksum({**content, "run": f"gqa_{place}", "variant": f"gqa_{place}"})
        (folder / RECORD_NAME).write_text(json.dumps(other, indent=2))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, sys.executable, "-m", "efficientbench.cli", "report", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    elapsed_s, processor_s, peak_bytes = map(float, done.stdout.splitlines()[-1].split())
    print(f"{elapsed_s:.1f} s ({processor_s:.1f} s of a processor), {peak_bytes / 1e9:.2f} GB")
    # A busy machine makes a process wait: what the report itself costs is its processor time. Half of it goes for
    # reading the records and their checksums, which takes each machine its own time; noise computed anew for each pair
    # of rows made it 2.9 times the reading.
    begin_s = time.process_time()
    for place in range(1, READ + 1):
        read_record(tmp_path / f"run_{place}" / RECORD_NAME)
    reading_s = (time.process_time() - begin_s) * RUNS / READ
    print(f"{reading_s:.1f} s for reading alone")
    assert processor_s < 2.5 * reading_s
    assert peak_bytes < 1e9
    assert (tmp_path / "report.csv").read_text().count("\n") == RUNS + 1
