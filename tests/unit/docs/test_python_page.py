"""Calls from Python: the notebook runs, its page shows its code, and the package alone imports nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record
from support.repository import ROOT

import efficientbench
from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.records.runs import Runs

NOTEBOOK = ROOT / "examples" / "runs_from_python.ipynb"


def cells() -> list[str]:
    """Return the code of the notebook's cells."""
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


CHECKS = """
from efficientbench.metrics.records.record import FIGURES
assert list(table.columns) == list(FIGURES)
assert sorted(table["seed"]) == [1, 1, 2, 2, 3, 3]
assert {ratio.metric for ratio in comparison.ratios} >= {"al_s", "tokens_per_s"}
assert {ratio.runs for ratio in comparison.ratios} == {(3, 3)}
projected = efficientbench.plan("gqa_7B", "training.seq_len=2048", world=8, device="H100 SXM")
assert projected.projection.step_time_s > 0
"""


@pytest.mark.proof
def test_the_notebook_runs_in_an_empty_folder(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    # In a process of its own, as its reader has it: a plan on a cluster counts in a world of its own.
    code = "\n".join([*cells(), CHECKS])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "6 runs; none left out" in done.stdout
    assert "MFU: None since " in done.stdout
    assert "1543714304 parameters" in done.stdout


def test_the_page_has_the_code_of_the_notebook() -> None:
    page = (ROOT / "docs" / "measure-your-loop.md").read_text(encoding="utf-8")
    first = r"^## {}\n\n```python\n(.*?)\n```"
    shown = [re.findall(first.format(each), page, re.M | re.S) for each in ("Measure", "Load", "Compare", "Plan")]
    assert sum(shown, []) == cells()


def test_importing_the_package_imports_none_of_its_parts() -> None:
    code = "import sys, efficientbench; print([name for name in sys.modules if name.startswith('efficientbench.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_mistakes_in_calls_are_named() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'laod'"):
        _ = efficientbench.laod
    with pytest.raises(MetricsError, match="there is no such folder"):
        efficientbench.load("no_such_folder")
    with pytest.raises(ConfigError, match="did you mean training.seq_len"):
        efficientbench.plan("gqa_1.5B", "training.seqlen=8")
    with pytest.raises(MetricsError, match="nonsense"):
        efficientbench.plan("gqa_1.5B", device="nonsense")
    for world in (0, -8):
        with pytest.raises(ConfigError, match=f"world={world}: a cluster has 1 accelerator or more"):
            efficientbench.plan("gqa_1.5B", world=world)
    with pytest.raises(ConfigError, match="^output: .* is a file; give a folder$"):
        efficientbench.plan("gqa_1.5B", f"output={NOTEBOOK}")
    for words in ((5,), ("gqa_1.5B", {"training.seq_len": 8})):
        with pytest.raises(ConfigError, match="is no text: plan takes a run's name and keys, 'gqa_1.5B'"):
            efficientbench.plan(*words)
    for call in (lambda: efficientbench.load(5), lambda: efficientbench.compare(5, 6)):
        with pytest.raises(MetricsError, match="^5 is no path: give the folder of runs, like 'output/mine'$"):
            call()
    with pytest.raises(MetricsError, match=r"^Runs\(records=\(\), .* is no path"):
        efficientbench.compare(Runs((), ()), "output/mine")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gqa_1.5B", {"world": "8"}, "world='8': a cluster has 1 accelerator or more, as a whole number"),
        ("gqa_1.5B", {"world": 8, "devices_per_node": 0}, "devices_per_node=0: a cluster has 1 accelerator or more"),
        ("gqa_1.5B", {"devices_per_node": 4}, "devices_per_node goes with world=N or device=NAME"),
        ("lora_32B", {}, "^lora_32B is a fine-tuning: efficientbench finetune lora_32B, with --plan"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_name(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        efficientbench.plan(name, **options)


def test_a_device_alone_is_planned_on_a_usual_machine_of_it_without_torch_too() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'megatron', 'transformers')); import efficientbench\n"
        "for given in ({}, {'devices_per_node': 4}):\n"
        "    found = efficientbench.plan('gqa_1.5B', device='H100 SXM', **given)\n"
        "    print(found.grid.layout.world_size, found.stage_parameters, found.projection.step_time_s > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("8 (1543714304,) True\n4 (1543714304,) True\n", "")


def test_without_pandas_there_are_records_and_no_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "gqa" / "record.json")
    monkeypatch.setitem(sys.modules, "pandas", None)
    runs = efficientbench.load(tmp_path)
    assert [record.tokens_per_s for record in runs] == [make_record().tokens_per_s]
    with pytest.raises(MetricsError, match="pip install pandas"):
        runs.frame()


def test_the_version_is_the_same_everywhere() -> None:
    assert f'version="{efficientbench.__version__}"' in (ROOT / "setup.py").read_text()
    assert f"version: {efficientbench.__version__}" in (ROOT / "CITATION.cff").read_text()
