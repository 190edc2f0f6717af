"""What is installed beside a torch that an image brings: a folder of distributions stands for the image."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import ROOT

from efficientbench.launchers.environment.image_torch import pins_beside_image, requirement_name

PINS = [
    "# comment",
    'numpy==2.2.6; python_version < "3.11"',
    'numpy==2.4.6; python_version >= "3.11"',
    "pydantic==2.14.3",
    "sympy==1.14.0",
    "mpmath==1.3.0",
    "torch==2.13.0",
    "torch-npu==2.13.0",
    "typing-extensions==4.16.0",
]


def distribution(image: Path, name: str, version: str, *requires: str) -> None:
    folder = image / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    (folder / "RECORD").write_text(f"{folder.name}/METADATA,,\n")


def image(folder: Path, has_cuda: bool) -> Path:
    """An older torch with one requirement that contradicts our pins, directly and through another package."""
    needs = ["sympy==1.13.1", "typing-extensions>=4.10", 'pytest; extra == "testing"']
    distribution(folder, "torch", "2.6.0+vendor", *needs)
    distribution(folder, "sympy", "1.13.1", "mpmath<1.4,>=1.1.0")
    distribution(folder, "mpmath", "1.2.0")
    distribution(folder, "numpy", "1.26.4")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"class cuda:\n    is_available = lambda: {has_cuda}\n")
    return folder


def look(folder: Path, tmp_path: Path) -> tuple[int, list[str], list[str]]:
    """Exit status, lines of stdout, and pins that the real program writes with this image on its path."""
    constraints, output = tmp_path / "constraints.txt", tmp_path / "output.txt"
    constraints.write_text("\n".join(PINS) + "\n")
    command = [
        sys.executable,
        "-S",
        str(ROOT / "launchers" / "environment" / "image_torch.py"),
        str(constraints),
        str(output),
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    pins = output.read_text().splitlines() if output.exists() else []
    return done.returncode, done.stdout.splitlines(), pins


def test_the_images_torch_and_numpy_are_pinned_but_not_torchs_dependencies(tmp_path: Path) -> None:
    status, lines, pins = look(image(tmp_path / "image", has_cuda=True), tmp_path)
    assert status == 0
    assert lines[:2] == ["torch 2.6.0+vendor (cuda)", str(tmp_path / "image" / "torch-2.6.0+vendor.dist-info")]
    # typing-extensions is not among the image's distributions, so our pin serves.
    ours = ["pydantic==2.14.3", "torch-npu==2.13.0", "typing-extensions==4.16.0"]
    assert pins == [*ours, "torch==2.6.0+vendor", "numpy==1.26.4"]


def test_torch_npu_is_pinned(tmp_path: Path) -> None:
    folder = image(tmp_path / "image", has_cuda=False)
    distribution(folder, "torch-npu", "2.6.0.post1", "torch==2.6.0")
    (folder / "torch_npu").mkdir()
    (folder / "torch_npu" / "__init__.py").write_text("raise ImportError('libascendcl.so: CANN is not sourced')")
    status, lines, pins = look(folder, tmp_path)
    assert (status, lines[0]) == (0, "torch 2.6.0+vendor (npu)")
    assert pins[-3:] == ["torch==2.6.0+vendor", "torch-npu==2.6.0.post1", "numpy==1.26.4"]
    assert "torch-npu==2.13.0" not in pins


@pytest.mark.parametrize("has_torch", [True, False])
def test_an_image_without_accelerator_support_has_no_pins(tmp_path: Path, has_torch: bool) -> None:
    folder = image(tmp_path / "image", has_cuda=False) if has_torch else tmp_path / "empty"
    assert look(folder, tmp_path) == (3, [], [])


def test_our_pins_can_be_read() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line for line in lines)
    assert "torch" in map(requirement_name, lines)
    kept = {requirement_name(line) for line in pins_beside_image(lines)}
    assert {"megatron-core", "transformers", "torch"} <= kept


def test_a_line_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no distribution name"):
        requirement_name("==1.0")
