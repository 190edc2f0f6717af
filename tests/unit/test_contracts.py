"""What the parts of the project may know of each other."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

DEVICE_WORDS = {"cuda", "npu", "nccl", "hccl", "gloo"}
DEVICE_FOLDERS = [ROOT / "efficientbench" / "devices", ROOT / "efficientbench" / "model" / "kernels"]


def device_words(source: str) -> Iterator[tuple[int, str]]:
    """Line and word of every device that code names: an identifier, or a string such as ``"cuda:0"``.

    Docstrings and comments may speak of devices.
    """
    tree = ast.parse(source)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in DEVICE_WORDS:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING and token.start not in docstrings:
            text = token.string.lstrip("rbfuRBFU").strip("\"'")
            if text.split(":")[0] in DEVICE_WORDS:
                yield token.start[0], text


def test_imports_point_downwards() -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_devices_and_kernels_name_a_device() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in sorted((ROOT / "efficientbench").rglob("*.py"))
        if not any(folder in file.parents for folder in DEVICE_FOLDERS)
        for line, word in device_words(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_search_for_device_names_finds_them() -> None:
    source = (
        '"""On cuda."""\nimport torch  # cuda\nx = torch.cuda.stream()\ny = f(device="npu:0")\nz = "no cuda device"\n'
    )
    assert list(device_words(source)) == [(3, "cuda"), (4, "npu:0")]
