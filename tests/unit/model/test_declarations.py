"""What a variant is stands in its declaration, which is light, and nowhere else."""

from __future__ import annotations

import re
import subprocess
import sys

from support.repository import ROOT

from efficientbench.architecture.registry import ATTENTION, POSITIONS

KINDS = "|".join([*ATTENTION, *(kind for kind in POSITIONS if kind != "none")])
OWN_FILES = re.compile(
    rf"efficientbench/(model/(attention/|position\.py|kernels/({KINDS})(/|\.py)|kernels/window_attention\.py)|"
    rf"export/({KINDS})\.py)|"
    # The tables of variants, of transformers' classes and their keys, and of runs.
    r"efficientbench/(architecture/|export/(architectures|families|foreign_layers|recurrent)\.py|planning/foreign/)|metrics/report/paper/paper\.py"
)


def test_no_other_file_names_a_variant() -> None:
    classes = "|".join(each.config.__name__ for each in (*ATTENTION.values(), *POSITIONS.values()))
    named = re.compile(rf"""\b({classes})\b|["']({KINDS})["']|import .*\b({KINDS})(_variant)?\b|^ +({KINDS}),$""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("efficientbench", "metrics", "launchers", "data_tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not OWN_FILES.match(str(path.relative_to(ROOT)))
        for line in path.read_text(encoding="utf-8").splitlines()
        if named.search(line)
    ]
    assert found == []


def test_all_runs_are_planned_without_torch() -> None:
    code = (
        "import sys; from efficientbench.config.load import resolve; from efficientbench.config.matrix import "
        "load_matrix; from efficientbench.costs.model import count_parameters, flops_per_token\n"
        "for run in load_matrix().runs:\n"
        "    model = resolve(run.name).model\n"
        "    count_parameters(model), flops_per_token(model, 2048)\n"
        "print(sorted({'torch', 'megatron'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
