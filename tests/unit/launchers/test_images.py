"""The Dockerfiles: what they copy is what their set-up needs, and what it asks pip for is what constraints.txt pins."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.ascend_machine import executable
from support.repository import ROOT

IMAGES = sorted((ROOT / "launchers" / "images").glob("*.Dockerfile"))
HOME = "/opt/efficientbench"

# Answers as an interpreter without torch, and keeps what pip is asked for, with its pins.
PYTHON = r"""#!/bin/bash
case "$*" in
    "-c import sys; print"*) echo 3.12.3 ;;
    *image_torch.py*) exit 3 ;;
    "-m venv "*) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
    "-I -m pip install "*)
        printf '%s\n' "$*" >>"{seen}/pip"
        while [[ "$1" != -c ]]; do shift; done
        cp "$2" "{seen}/pins" ;;
    *) exit 1 ;;
esac
"""


def instructions(image: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, each with its arguments, without comments."""
    lines = [line for line in image.read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in whole if line)]


def copied(image: Path, folder: Path) -> Path:
    """Return a folder with what an image copies, and nothing else."""
    for name, rest in instructions(image):
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                place = folder / target / source if target == "./" else folder / target
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, place)
    return folder


@pytest.mark.parametrize("image", IMAGES, ids=[image.name for image in IMAGES])
def test_the_set_up_of_an_image_asks_for_our_pins(image: Path, tmp_path: Path) -> None:
    folder, seen, tools = tmp_path / "image", tmp_path / "seen", tmp_path / "bin"
    folder.mkdir()
    seen.mkdir()
    copied(image, folder)
    executable(tools / "python3", PYTHON.format(seen=seen))
    found = instructions(image)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= dict(rest.replace('"', "").split("=") for name, rest in found if name == "ARG" and "=" in rest)
    commands = [rest for name, rest in found if name == "RUN" and "bootstrap.sh" in rest]
    assert len(commands) == 1
    done = subprocess.run(
        ["bash", "-c", commands[0]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (seen / "pins").read_text() == (ROOT / "constraints.txt").read_text()
    extra = "npu" if image.name.startswith("cann") else "gpu"
    assert (seen / "pip").read_text().splitlines()[-1].endswith(f"-e {folder}[metrics,data,train,{extra}]")
    assert f'"{extra}": [' in (folder / "setup.py").read_text()


@pytest.mark.parametrize("image", IMAGES, ids=[image.name for image in IMAGES])
def test_an_image_names_no_version_of_its_own_and_starts_what_it_has(image: Path, tmp_path: Path) -> None:
    found = instructions(image)
    assert not [rest for name, rest in found if name == "RUN" and re.search("[=<>]=|pip install", rest)]
    for name, rest in found:
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)
    entry = json.loads(next(rest for name, rest in found if name == "ENTRYPOINT"))
    assert [entry[0], entry[2]] == ["bash", "--"]
    assert (copied(image, tmp_path) / Path(entry[1]).relative_to(HOME)).is_file()
    assert f"PATH={HOME}/.venv/bin:$PATH" in [rest for name, rest in found if name == "ENV"]
    assert f"docker build -f launchers/images/{image.name}" in image.read_text()


def test_there_is_one_for_each_kind_of_accelerator() -> None:
    assert [image.name for image in IMAGES] == ["cann.Dockerfile", "cuda.Dockerfile"]
    for page in ("docs/clusters.md", "docs/zh/clusters.md"):
        text = (ROOT / page).read_text()
        assert all(f"launchers/images/{image.name}" in text for image in IMAGES)
