"""What the parts of the project may know of each other."""

from __future__ import annotations

import ast
import graphlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import grimp
from support.repository import ROOT

from efficientbench.config.schema import MeasurementConfig
from efficientbench.metrics import EfficiencyMonitor

DEVICE_WORDS = {"cuda", "npu", "nccl", "hccl", "gloo"}
PACKAGES = ["efficientbench", "metrics", "data_tools", "launchers", "examples"]
DEVICE_FOLDERS = [ROOT / "efficientbench" / "devices", ROOT / "efficientbench" / "model" / "kernels"]
# Free-standing code that says which vendor's telemetry or which vendor's image it is about, and computes on no device.
SCOPE = "the scope of a measurement, as gpu and host are"
EXCEPTIONS = {
    "metrics/monitoring/aggregate.py": SCOPE,
    "metrics/monitoring/sensor_registry.py": "the registry of sensors by device type",
    "metrics/report/paper/paper.py": SCOPE,
    "metrics/sensors/base.py": SCOPE,
    "metrics/sensors/ascend/dcmi.py": SCOPE,
    "launchers/environment/image_torch.py": "which vendor's torch an image has, asked before the project is installed",
    "efficientbench/doctor/ascend.py": "the check of one device type, whose chips it knows by name",
    "launchers/check_npu.py": "the check of one device type, called by its name",
}


def device_words(source: str) -> Iterator[tuple[int, str]]:
    """Line and word of every device that code names: an identifier, or a string such as ``"cuda:0"``.

    Docstrings and comments may speak of devices.
    """
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if DEVICE_WORDS & set(re.split("[:,]", node.value)):
                yield node.lineno, node.value
        else:
            for name in _identifiers(node):
                if name in DEVICE_WORDS:
                    yield getattr(node, "lineno", 0), name


def _identifiers(node: ast.AST) -> list[str]:
    if isinstance(node, ast.alias):
        return [*node.name.split("."), node.asname or ""]
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")
    # Of names, attributes, arguments, keywords, functions and classes.
    found = (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
    return [name for name in found if isinstance(name, str)]


def test_imports_point_downwards() -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_imports_itself_through_others() -> None:
    # Through the links to metrics, data_tools and launchers, imports for types and within functions included.
    graph = grimp.build_graph("efficientbench")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert any(module.startswith("efficientbench.data_tools.download.") for module in imports)
    # Raises CycleError, which names the files of the circle.
    graphlib.TopologicalSorter(imports).prepare()


def test_only_devices_and_kernels_name_a_device() -> None:
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if not any(folder in file.parents for folder in DEVICE_FOLDERS):
                words = [f"{line}: {word}" for line, word in device_words(file.read_text(encoding="utf-8"))]
                if words:
                    found[str(file.relative_to(ROOT))] = words
    assert {file: words for file, words in found.items() if file not in EXCEPTIONS} == {}
    assert [file for file in EXCEPTIONS if file not in found] == [], "no exception any more"


def test_the_search_for_device_names_finds_them() -> None:
    source = (
        '"""On cuda."""\nimport torch  # cuda\nx = torch.cuda.stream()\ny = f(device="npu:0")\nz = "no cuda device"\n'
        'a = f"cuda:{x}"\nfrom torch import npu as other\nb = g(gloo=1)\nc = "cpu:gloo,npu:hccl"\n'
    )
    assert sorted(device_words(source)) == [
        (3, "cuda"),
        (4, "npu:0"),
        (6, "cuda:"),
        (7, "npu"),
        (8, "gloo"),
        (9, "cpu:gloo,npu:hccl"),
    ]


def test_runs_and_other_loops_are_sampled_alike() -> None:
    default = inspect.signature(EfficiencyMonitor).parameters["sample_interval_s"].default
    assert MeasurementConfig().sample_interval_s == default
