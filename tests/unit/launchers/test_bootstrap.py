"""How the scripts find or make their Python environment, with the real shell script in a folder of its own."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from replicas.ascend_machine import executable, mark_complete
from support.command_line import until
from support.repository import ROOT

TOOLS = ("cat", "cut", "dirname", "env", "flock", "mkdir", "mktemp", "mv", "rm", "sed", "sha256sum", "tail", "tr")
# An index that nobody serves: what would install fails at once.
NO_INDEX = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with all that the set-up reads."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "launchers", folder / "launchers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    for package in ("efficientbench", "metrics", "data_tools"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the system's tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", *TOOLS):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return folder


def clean_environment(path: str, **more: str) -> dict[str, str]:
    return {"PATH": path, "HOME": os.environ.get("HOME", "/"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def bootstrap(clone: Path, environment: dict[str, str], *extras: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(clone / "launchers" / "bootstrap.sh"), *extras]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def finish(clone: Path, extras: str) -> None:
    """Lays down a finished .venv whose Python complains when it is started."""
    executable(clone / ".venv" / "bin" / "python", "#!/bin/bash\necho 'started Python' >&2; exit 1\n")
    mark_complete(clone, extras)


def is_complete(clone: Path, *extras: str) -> bool:
    script = 'source "$1"; shift; _bootstrap_is_complete "$@"'
    command = ["bash", "-c", script, "script", str(clone / "launchers" / "bootstrap.sh"), *extras]
    return subprocess.run(command, check=False).returncode == 0


def test_a_finished_environment_is_found_without_starting_python(clone: Path, tools: Path) -> None:
    finish(clone, "dev")
    # No Python lies on this PATH.
    done = bootstrap(clone, clean_environment(str(tools)), "dev")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_gets_the_environment_on_its_path(clone: Path, tools: Path) -> None:
    finish(clone, "")
    script = """
    set -euo pipefail
    source launchers/bootstrap.sh
    bootstrap
    echo "$VIRTUAL_ENV ${PATH%%:*} $PYTHONSAFEPATH $*"
    """
    command = ["bash", "-c", script, "script", "--smoke", "dsw"]
    environment = clean_environment(str(tools))
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    venv = clone.resolve() / ".venv"
    assert (done.stdout, done.stderr) == (f"{venv} {venv}/bin 1 --smoke dsw\n", "")


def test_an_incomplete_or_outdated_environment_is_not_used(clone: Path) -> None:
    assert not is_complete(clone)
    finish(clone, "dev")
    assert is_complete(clone)
    assert is_complete(clone, "dev")
    assert not is_complete(clone, "dev", "gpu")

    moved = clone.with_name("moved")
    shutil.copytree(clone, moved)
    assert not is_complete(moved)

    with (clone / "constraints.txt").open("a") as constraints:
        constraints.write("# another version\n")
    assert not is_complete(clone)
    finish(clone, "dev")
    assert is_complete(clone)
    (clone / ".venv" / ".efficientbench-complete").unlink()
    assert not is_complete(clone)


def test_an_active_environment_that_lacks_a_package_is_not_used(clone: Path, tmp_path: Path) -> None:
    venv = tmp_path / "active"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    packages = next(venv.glob("lib/python3*")) / "site-packages"
    (packages / "clone.pth").write_text(f"{clone.resolve()}\n")
    executable(venv / "bin" / "efficientbench", "#!/bin/bash\n")
    required = (ROOT / "setup.py").read_text().partition('"gpu"')[0]
    requirements = re.findall(r'"([\w-]+)[=>]=', required)
    modules = {"nvidia-ml-py": "pynvml", "megatron-core": "megatron", "pyyaml": "yaml"}
    folders = [packages / modules.get(requirement, requirement) for requirement in requirements]
    for folder in (*folders, packages / "megatron" / "core"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    assert len(folders) > 15
    script = 'source "$1"; _bootstrap_serves "${@:2}"'
    command = ["bash", "-c", script, "script", str(clone / "launchers" / "bootstrap.sh"), str(venv / "bin" / "python")]
    environment = clean_environment(f"{venv / 'bin'}:{os.environ['PATH']}")
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    # DeepSpeed alone does not fine-tune.
    tuning = [*command, "finetune"]
    for package, code in (("deepspeed", 1), ("peft", 1), ("trl", 0)):
        (packages / package).mkdir()
        (packages / package / "__init__.py").touch()
        assert subprocess.run(tuning, env=environment, check=False).returncode == code, package
    shutil.rmtree(packages / "pyarrow")
    assert subprocess.run(command, env=environment, check=False).returncode == 1


def test_an_environment_of_another_image_is_not_used(clone: Path, tmp_path: Path) -> None:
    finish(clone, "")
    stamp = clone / ".venv" / ".efficientbench-complete"
    torch = tmp_path / "torch-2.6.0.dist-info"
    torch.mkdir()
    lines = stamp.read_text().split("\n")
    stamp.write_text("\n".join([*lines[:2], str(torch), *lines[3:]]))
    assert is_complete(clone)
    torch.rmdir()
    assert not is_complete(clone)


@pytest.mark.parametrize("version", ["3.9.25", "3.10.0", "3.11.2", "3.12.1", "3.13.0", "3.14.0"])
def test_the_set_up_accepts_the_python_versions_of_setup_py(version: str, tools: Path) -> None:
    executable(tools / "python3", f'#!/bin/bash\n[[ "$1" == -c ]] && echo {version}\n')
    found = subprocess.run(
        ["bash", "-c", 'source "$1"; _bootstrap_find_python', "script", str(ROOT / "launchers" / "bootstrap.sh")],
        env=clean_environment(str(tools)),
        capture_output=True,
        check=False,
    )
    wanted = re.search(r'python_requires="(.+)"', (ROOT / "setup.py").read_text())
    assert wanted is not None
    assert (found.returncode == 0) == SpecifierSet(wanted[1]).contains(version)


@pytest.mark.parametrize(("version", "told"), [("3.9.2", "python3 is 3.9.2"), (None, "no python3")])
def test_unsupported_pythons_are_named_where_no_supported_one_exists(
    clone: Path, tools: Path, version: str | None, told: str
) -> None:
    if version is not None:
        executable(tools / "python3", f'#!/bin/bash\n[[ "$1" == -c ]] && echo {version}\n')
    done = bootstrap(clone, clean_environment(str(tools)))
    assert done.returncode == 1
    assert done.stderr == f"error: Python 3.10 to 3.13 is needed; found on PATH: {told}\n"


def test_fine_tuning_is_refused_on_python_3_10_in_one_line(clone: Path, tools: Path) -> None:
    executable(tools / "python3", '#!/bin/bash\n[[ "$1" == -c ]] && echo 3.10.12\n')
    done = bootstrap(clone, clean_environment(str(tools)), "finetune")
    told = f"error: fine-tuning needs Python 3.11 or newer, as TRL does; {tools / 'python3'} is 3.10.12\n"
    assert (done.returncode, done.stderr) == (1, told)
    assert not (clone / ".venv").exists()


def test_an_active_environment_with_the_package_is_used_unchanged(clone: Path, tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    executable(tools / "efficientbench", "#!/bin/bash\n")
    site = [str(folder) for folder in map(Path, sys.path) if folder.name == "site-packages"]
    environment = clean_environment(str(tools), PYTHONPATH=os.pathsep.join([str(clone), *site]), **NO_INDEX)
    done = bootstrap(clone, environment, "dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (clone / ".venv").exists()


def test_an_installed_wheel_is_used_without_a_set_up(clone: Path, tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    executable(tools / "efficientbench", "#!/bin/bash\n")
    package = clone.with_name("site") / "efficientbench"
    shutil.copytree(clone / "launchers", package / "launchers")
    (package / "__init__.py").touch()
    site = [str(folder) for folder in map(Path, sys.path) if folder.name == "site-packages"]
    environment = clean_environment(str(tools), PYTHONPATH=os.pathsep.join([str(package.parent), *site]), **NO_INDEX)
    done = bootstrap(package, environment)
    assert (done.returncode, done.stderr) == (0, "")
    done = bootstrap(package, clean_environment(str(tools), **NO_INDEX))
    assert done.returncode == 1
    assert "efficientbench was installed from a wheel" in done.stderr
    assert not (package / ".venv").exists()


def test_a_venv_of_the_user_is_left_unchanged(clone: Path, tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    executable(clone / ".venv" / "bin" / "python", "#!/bin/bash\nexit 1\n")
    done = bootstrap(clone, clean_environment(str(tools), **NO_INDEX))
    assert done.returncode == 1
    assert ".venv was not made by launchers/bootstrap.sh" in done.stderr
    assert sorted(path.name for path in (clone / ".venv").iterdir()) == ["bin"]


def test_an_unknown_extra_is_refused(clone: Path, tools: Path) -> None:
    done = bootstrap(clone, clean_environment(str(tools)), "devel")
    assert (done.returncode, done.stderr) == (
        2,
        "error: bootstrap: unknown extra 'devel': chat, dev, docs, finetune, gpu, npu, plots or wandb\n",
    )
    done = bootstrap(clone, clean_environment(str(tools), LANG="zh_CN.UTF-8"), "devel")
    assert (done.returncode, done.stderr[:22]) == (2, "错误：bootstrap：未知的 extra")


# Answers as an interpreter without torch, and takes a while to install.
SLOW_PYTHON = r"""#!/bin/bash
case "$*" in
    "-c import sys; print"*) echo 3.12.3 ;;
    *image_torch.py*) exit 3 ;;
    "-m venv "*) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
    *"-m pip install "*)
        echo "$*" >>"{seen}"
        until [[ -e "{go_on}" ]]; do sleep 0.05; done ;;
    *) exit 1 ;;
esac
"""


def test_the_set_up_says_which_step_it_is_in_and_how_long_it_took(clone: Path, tools: Path, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    go_on.touch()
    executable(tools / "python3", SLOW_PYTHON.format(seen=tmp_path / "seen", go_on=go_on))
    done = bootstrap(clone, clean_environment(f"{tools}:/usr/bin:/bin"), "chat")
    assert done.returncode == 0, done.stderr
    assert [re.sub(r" \(.*|\d+ s$", "", line) for line in done.stderr.splitlines()] == [
        f"set-up: 1 of 3: making .venv with {tools / 'python3'}",
        "set-up: 2 of 3: pip, setuptools and wheel",
        "set-up: 3 of 3: torch, Megatron-core, transformers and what else is pinned, for chat too: a few minutes, once",
        "set-up: done after ",
    ]


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("Obtaining file:///clone\n", "asking the package index"),
        (
            "Collecting torch==2.13.0 (x)\n  Downloading t.whl (8 MB)\nCollecting numpy>=1\n  Using cached n.whl\n",
            "fetched 2 packages, the last one numpy",
        ),
        ("Collecting torch\nInstalling collected packages: torch, numpy, rich\n", "unpacking 3 packages"),
    ],
)
def test_pips_log_is_told_in_words(clone: Path, tmp_path: Path, log: str, told: str) -> None:
    (tmp_path / "log").write_text(log)
    words = f"source {clone}/launchers/bootstrap.sh; _bootstrap_progress {tmp_path}/log 30"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    assert done.stderr == f"set-up: 3 of 3, after 30 s: {told}\n"


def test_one_of_two_concurrent_set_ups_installs_and_both_succeed(clone: Path, tools: Path, tmp_path: Path) -> None:
    seen, go_on = tmp_path / "seen", tmp_path / "go_on"
    executable(tools / "python3", SLOW_PYTHON.format(seen=seen, go_on=go_on))
    command = ["bash", str(clone / "launchers" / "bootstrap.sh")]
    environment = clean_environment(f"{tools}:/usr/bin:/bin")
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    until(lambda: seen.exists(), "an installation")
    waiting = [each for each in both if each.stderr and "another set-up" in each.stderr.readline()]
    assert len(waiting) == 1
    go_on.touch()
    assert [each.wait(timeout=60) for each in both] == [0, 0]
    assert sum("-e " in line for line in seen.read_text().splitlines()) == 1
    assert is_complete(clone)


@pytest.mark.parametrize(("locale", "told"), [("C", "error: cannot write to "), ("zh_CN.UTF-8", "错误：无法写入 ")])
def test_a_clone_owned_by_another_user_is_named(clone: Path, tools: Path, locale: str, told: str) -> None:
    (clone / ".venv.lock").mkdir()
    done = bootstrap(clone, clean_environment(str(tools), LANG=locale))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"{told}{clone.resolve()}")


def test_a_clone_whose_path_is_not_utf_8_is_refused(clone: Path, tools: Path) -> None:
    executable(tools / "python3", SLOW_PYTHON.format(seen=clone / "seen", go_on=clone))
    moved = clone.rename(clone.with_name(os.fsdecode("你好".encode("gbk"))))
    command = ["bash", str(moved / "launchers" / "bootstrap.sh")]
    environment = clean_environment(f"{tools}:/usr/bin:/bin")
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(
        b"error: the path of this repository is not UTF-8, which pip and Python need: move it"
    )
    assert not (moved / ".venv").exists()


NO_EXTENSION = """from setuptools import Extension, setup
setup(name='lacking', version='1.0', ext_modules=[Extension('lacking', ['absent.c'])])"""


@pytest.mark.parametrize(
    ("source", "wanted", "told"),
    [
        (None, "lacking==1.0", "the package index has no lacking==1.0 for this processor and Python ("),
        (None, "lacking", "the package index has no lacking for this processor and Python ("),
        (NO_EXTENSION, "lacking", "the package index has no wheel of lacking for this processor and Python ("),
        ("raise SystemExit('no compiler')", "lacking", "lacking-1.0.tar.gz for this processor and Python ("),
    ],
    ids=["no file", "no file of a pinned one", "no extension", "no metadata"],
)
def test_a_package_without_a_wheel_for_this_processor_is_named(
    source: str | None, wanted: str, told: str, tmp_path: Path, clone: Path
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    if source is None:
        with zipfile.ZipFile(index / "lacking-1.0-py3-none-manylinux_2_28_riscv64.whl", "w"):
            pass
    else:
        (tmp_path / "setup.py").write_text(source)
        with tarfile.open(index / "lacking-1.0.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "setup.py", "lacking-1.0/setup.py")
    executable(clone / ".venv" / "bin" / "python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (tmp_path / "pins.txt").write_text("lacking==1.0\n" if wanted == "lacking" else "")
    script = 'source "$1"; _bootstrap_pip "$2/log" "$2/pins.txt" --no-index --find-links "$2/index" "${@:3}"'
    words = [str(clone / "launchers" / "bootstrap.sh"), str(tmp_path), "--no-build-isolation", wanted]
    environment = clean_environment(os.environ["PATH"], PIP_CONFIG_FILE=os.devnull)
    command = ["bash", "-c", script, "script", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert told + platform.machine() in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.proof
def test_a_set_up_without_a_network_fails_and_leaves_no_complete_environment(clone: Path, tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    environment = clean_environment(f"{tools}:/usr/bin:/bin", **NO_INDEX)
    for _ in range(2):
        done = bootstrap(clone, environment)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("error: the package index cannot be reached")
        assert not is_complete(clone)


@pytest.mark.proof
def test_a_second_set_up_waits_and_a_killed_one_leaves_no_complete_environment(clone: Path, tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    environment = clean_environment(f"{tools}:/usr/bin:/bin", **NO_INDEX)
    command = ["bash", str(clone / "launchers" / "bootstrap.sh")]
    first = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert first.stderr is not None
    assert "making .venv" in first.stderr.readline()
    second = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    assert "another set-up" in second.stderr.readline()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert not is_complete(clone)
    rest = second.communicate(timeout=120)[1]
    assert rest.startswith("set-up: 1 of 3: making .venv")
    assert second.returncode == 1
    assert not is_complete(clone)
