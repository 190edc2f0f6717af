"""`efficientbench doctor` on this machine, and on one whose torch does not import."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import efficientbench
from support.repository import ROOT

SECTIONS = ("Packages", "Devices", "Collective backends", "Measurement", "Host")


def test_the_report_has_every_section_and_the_remedies() -> None:
    done = efficientbench("doctor", COLUMNS="80", expect=0, stderr="")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    assert max(map(len, lines)) <= 80
    found = {tuple(line.split()[:2]) for line in lines if line[:1] in ("✓", "✗")}
    names = ("python", "torch", "megatron-core", "numpy", "transformers", "tokenizers", "cpu", "cores", "memory")
    assert {("✓", name) for name in names} <= found
    assert "computes in" in done.stdout
    assert "memory (AMU), utilization (PCU)" in done.stdout
    assert "a run measures mfu_of_measured_peak instead" in " ".join(done.stdout.split())
    # Each sensor says in a line what it reads here, or why it reads nothing.
    sensors = re.findall(r"^[✓✗].* sensor (\w+): ", done.stdout, re.MULTILINE)
    assert {"nvml", "dcmi", "host", "rapl"} <= set(sensors)
    assert "Runs train here on " in lines[-2]
    for index, line in enumerate(lines):
        if line.startswith("✗") and "driver's device file" in line:
            assert any(after.strip().startswith("needs: ") for after in lines[index + 1 : index + 3])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ('ImportError("libcudart.so.13: cannot open shared object file")', "libcudart.so.13"),
        # torch's error where torch-npu is installed and CANN's set_env.sh was not sourced.
        ('RuntimeError("Failed to load the backend extension: torch_npu")', "Failed to load the backend"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_reported(error: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(f"raise {error}")
    done = efficientbench("doctor", COLUMNS="80", PYTHONPATH=f"{tmp_path}:{ROOT}", expect=1, stderr="")
    assert f"does not import: {reason}" in done.stdout
    assert done.stdout.rstrip().endswith("Nothing can be trained here: mend torch first.")
