"""The Dockerfiles: what they copy is what their set-up needs, and what it asks pip for is what constraints.txt pins."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from replicas.ascend_machine import executable
from support.repository import ROOT

IMAGES = sorted((ROOT / "launchers" / "images").glob("*.Dockerfile"))
HOME = "/opt/efficientbench"

# Answers as an interpreter without torch, and keeps what pip is asked for, with its pins.
PYTHON = r"""#!/bin/bash
case "$*" in
    "-c import sys; print"*) echo 3.12.3 ;;
    *image_torch.py*) exit 3 ;;
    "-m venv "*) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
    "-X utf8 -I -m pip install "*)
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
def test_the_set_up_of_an_image_installs_our_pins(image: Path, tmp_path: Path) -> None:
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
def test_a_dockerfile_names_no_versions_and_its_entry_point_exists(image: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("image", IMAGES, ids=[image.name for image in IMAGES])
@pytest.mark.parametrize("digest", ["", f"sha256:{'0123' * 16}"])
def test_the_base_image_is_pinned_by_digest(image: Path, digest: str) -> None:
    found = instructions(image)
    names = [name for name, _ in found]
    before = [rest.partition("=") for name, rest in found[: names.index("FROM")] if name == "ARG"]
    assert [name for name, _, _ in before] == ["BASE", "DIGEST"]
    given = {name: value.strip('"') for name, _, value in before} | {"BASE": "registry/base:1", "DIGEST": digest}

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        environment = {**given, "PATH": "/usr/bin:/bin"}
        return subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)

    # Of these forms of ${...}, FROM and the shell make the same.
    assert shell(f"echo {next(rest for name, rest in found if name == 'FROM')}").stdout.strip() == (
        f"registry/base:1@{digest}" if digest else "registry/base:1"
    )
    # Arguments from before FROM are known after it only by name.
    after = found[names.index("FROM") + 1 :]
    warning = next(number for number, (name, rest) in enumerate(after) if name == "RUN" and "warning" in rest)
    assert {("ARG", "BASE"), ("ARG", "DIGEST")} <= set(after[:warning])
    told = "warning: no --build-arg DIGEST=sha256:...: registry/base:1 may be another image in the next build\n"
    assert shell(after[warning][1]).stderr == ("" if digest else told)
    assert not re.search("sha256:[0-9a-f]{64}", image.read_text())


@pytest.mark.parametrize("image", IMAGES, ids=[image.name for image in IMAGES])
def test_an_image_runs_as_a_user_who_owns_its_working_folder(image: Path) -> None:
    found = instructions(image)
    user = [rest for name, rest in found if name == "USER"][-1]
    # A number: Kubernetes' runAsNonRoot knows no names.
    assert int(user) > 0
    last = max(number for number, (name, rest) in enumerate(found) if name == "RUN")
    made = found[last][1]
    assert f"--uid {user} efficientbench" in made or f'--uid {user} ${{npus:+--groups "$npus"}} efficientbench' in made
    assert made.endswith("install -d --owner efficientbench /workspace")
    assert found[last + 1 : last + 3] == [("USER", user), ("WORKDIR", "/workspace")]
    assert found[-2][0] == "ENTRYPOINT"


def test_each_kind_of_accelerator_has_a_dockerfile() -> None:
    assert [image.name for image in IMAGES] == ["cann.Dockerfile", "cuda.Dockerfile"]
    for page in ("docs/clusters.md", "docs/zh/clusters.md"):
        text = (ROOT / page).read_text()
        assert all(f"launchers/images/{image.name}" in text for image in IMAGES)
