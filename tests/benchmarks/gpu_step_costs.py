"""What an optimizer step asks of a CUDA device, before and now: launches, bytes and memory.

Counted on a device without memory and numbers (tests/replicas/fake_cuda): no GPU is needed, and no time is known.

    python3 tests/benchmarks/gpu_step_costs.py [--against COMMIT] [--runs gqa_1.5B ...] [--write]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from replicas.fake_cuda.processes import FOLDER, build
from support.measured import checked_out, git, options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU

BEFORE = "97b63d83"
"""The commit that brought the counting."""
RUNS = ("gqa_1.5B", "mla_1.5B", "nsa_1.5B", "relative_1.5B", "moe_0.5Bx8")
SETTINGS = ("data.trained_vocab_size=4096", "training.micro_batch_size=2", "training.global_batch_size=2")


def main() -> None:
    """Count a step of each run in both trees, and print a row each."""
    parser = options(__doc__)
    parser.add_argument("--against", metavar="COMMIT", default=BEFORE)
    parser.add_argument("--runs", nargs="+", default=RUNS)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        earlier = checked_out(arguments.against, Path(folder))
        count_bytes(earlier)
        trees = {
            git("rev-parse", "--short=8", arguments.against): earlier,
            git("describe", "--always", "--dirty"): ROOT,
        }
        for name in arguments.runs:
            for commit, tree in trees.items():
                rows.append(row(name, commit, counted(tree, library, name)))
                print(*rows[-1].values(), sep="  ", flush=True)
    if arguments.write:
        conditions = f"a micro-batch and an update; a fake CUDA device; {', '.join(SETTINGS)}"
        write_content(__file__, CPU(), {"conditions": conditions, "rows": rows})


def count_bytes(tree: Path) -> None:
    """Give an earlier tree today's counter, and print the bytes that it counts."""
    there = tree / FOLDER.relative_to(ROOT)
    shutil.copy(FOLDER / "launches.py", there)
    step = (there / "step.py").read_text(encoding="utf-8")
    if "moved_bytes" not in step:
        step = step.replace('"peak_bytes"', '"moved_bytes": launches.moved_bytes, "peak_bytes"')
        (there / "step.py").write_text(step, encoding="utf-8")


def counted(tree: Path, library: Path, name: str) -> dict[str, Any]:
    """Return what a tree's step.py prints of a run."""
    script = tree / FOLDER.relative_to(ROOT) / "step.py"
    environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}"}
    words = [sys.executable, str(script), str(library), name, *SETTINGS]
    done = subprocess.run(words, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def row(name: str, commit: str, seen: dict[str, Any]) -> dict[str, str]:
    """Return what the file keeps of one run at one commit."""
    moved, peak, plan = (f"{seen[key] / 1e9:.1f}" for key in ("moved_bytes", "peak_bytes", "plan_bytes"))
    return {
        "run": name,
        "commit": commit,
        "launches": f"{seen['launches']:,}",
        "read and written, GB": moved,
        "live at once, GB": peak,
        "plan, GB": plan,
    }


if __name__ == "__main__":
    main()
