"""No script imports what lies in the folder in which it is called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replicas.ascend_machine import executable, install_cann, mark_complete
from support.repository import ROOT

SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("data_tools", "experiments", "launchers", "tests")
    for path in (ROOT / folder).rglob("*.sh")
)
LEAVES_A_MARK = "import posix\nposix.close(posix.open({mark!r} + __name__, posix.O_CREAT | posix.O_WRONLY))\n"
# Ours; the libraries' that scripts start; of the standard library what Python imports before or with them.
OURS = ("data_tools", "efficientbench", "experiments", "launchers", "metrics")
LIBRARIES = ("megatron", "numpy", "pip", "pydantic", "pytest", "rich", "setuptools", "torch", "typer", "yaml")
STANDARD = tuple(sorted(sys.stdlib_module_names - set(sys.builtin_module_names) - {"__future__"}))
HOOKS = ("sitecustomize", "usercustomize")
SOCKET = "import socket, sys, time; socket.socket(socket.AF_UNIX).bind(sys.argv[1]); time.sleep(60)"
MUNGED = """#!/bin/bash
for word; do [[ "$word" != --socket=* ]] || exec {python} -I -c '{code}' "${{word#*=}}"; done
"""


def pythons() -> Iterator[object]:
    """This Python, with an empty entry in PYTHONPATH too, as after CANN's set_env.sh; and the oldest and newest here.

    3.10 has no PYTHONSAFEPATH; 3.13 imports linecache before the first line of what `-c` gives.
    """
    yield pytest.param((sys.executable, ":"), id="empty entry")
    yield pytest.param((sys.executable, ""), id="this")
    for version in ("3.10", "3.13"):
        name = f"python{version}"
        other = next(Path.home().glob(f".pyenv/versions/{version}*/bin/{name}"), None) or shutil.which(name)
        if other is not None and version != ".".join(map(str, sys.version_info[:2])):
            marks = [pytest.mark.proof] if version == "3.13" else []
            # A shim of pyenv stands in the PATH for every version, and ends with 127 where none of it is chosen.
            if subprocess.run([other, "--version"], capture_output=True, check=False).returncode:
                marks.append(pytest.mark.skip(f"{other} does not run"))
            yield pytest.param((str(other), ""), id=version, marks=marks)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder full of modules that leave a mark when they are imported."""
    folder = tmp_path / "hostile"
    (tmp_path / "marks").mkdir()
    folder.mkdir()
    for name in (*OURS, *LIBRARIES, *STANDARD, *HOOKS):
        (folder / f"{name}.py").write_text(LEAVES_A_MARK.format(mark=f"{tmp_path}/marks/"))
    return folder


class Caller:
    """Calls scripts of a clone in the hostile folder, and finds what was imported there."""

    def __init__(self, folder: Path, hostile: Path, python: str = sys.executable, path: str = ":") -> None:
        self.folder, self.hostile, self.tools, self.path = folder, hostile, folder / "tools", path
        self.tools.mkdir()
        (self.tools / "python3").symlink_to(python)

    def call(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A script in bash."""
        plain = {"PATH": f"{self.tools}:/usr/bin:/bin", "HOME": str(self.folder), "PYTHONPATH": self.path}
        # An index that nobody serves.
        plain |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
        done = subprocess.run(
            ["bash", *words],
            cwd=self.hostile,
            env={**plain, "PYTHONDONTWRITEBYTECODE": "1", "ASCEND_DEVICE_FILES": "/no/davinci*", **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert not self.imported(), f"{words}: {done.stdout}{done.stderr}"
        return done

    def imported(self) -> list[str]:
        return sorted(os.listdir(self.folder / "marks"))


@pytest.fixture(params=list(pythons()))
def caller(request: pytest.FixtureRequest, tmp_path: Path, hostile: Path) -> Caller:
    return Caller(tmp_path, hostile, *request.param)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The launchers in a folder of their own, without a .venv."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "launchers", folder / "launchers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_importing_from_the_working_folder_is_detected(caller: Caller) -> None:
    with pytest.raises(AssertionError, match="as it was called"):
        caller.call("-c", "python3 -m json.tool; echo as it was called")
    assert caller.imported()


def test_help_of_every_script_imports_nothing_from_the_working_folder(tmp_path: Path, hostile: Path) -> None:
    caller = Caller(tmp_path, hostile)
    without_help = {
        *("launchers/job_scripts/container.sh", "launchers/job_scripts/torchrun_node.sh", "tests/run.sh"),
        *("tests/benchmarks/first_light.sh", "tests/replicas/one_machine_slurm.sh"),
    }
    assert len(SCRIPTS) > 80
    for script in SCRIPTS:
        if script not in without_help:
            done = caller.call(str(ROOT / script), "--help")
            assert done.returncode == 0 or "usage: " in done.stderr, script + done.stderr


def test_scripts_without_an_environment_import_nothing_from_the_working_folder(caller: Caller, clone: Path) -> None:
    launchers = clone / "launchers"
    done = caller.call(str(launchers / "cleanup.sh"), "--dry-run", str(clone))
    assert (done.returncode, done.stdout) == (0, f"no process of a run below {clone} is left\n")
    assert "torch" in caller.call(str(launchers / "fix_ascend_env.sh")).stdout
    assert caller.call(str(launchers / "job_scripts" / "torchrun_node.sh"), str(caller.folder), "true").returncode == 0
    assert "unknown engine" in caller.call(str(launchers / "job_scripts" / "container.sh"), "x").stderr
    started = 'source "$1"; _bootstrap_clean_path; MASTER_ADDR=localhost; job_c10d 1; job_torchrun --nnodes 1 -- true'
    done = caller.call("-c", f"{started} || true", "job", str(launchers / "job_scripts" / "job.sh"))
    assert "join_timeout=1" in done.stdout
    done = caller.call("-c", 'python3 -I "$1"', "check", str(launchers / "check_npu.py"))
    assert done.returncode in (0, 1, 2)


def test_the_container_script_imports_nothing_from_the_working_folder(caller: Caller, clone: Path) -> None:
    install_cann(caller.folder / "ascend")
    code = "import json.tool, os\nprint('ours', os.environ['PYTHONPATH'])\n"
    executable(caller.tools / "efficientbench", f"#!{os.path.realpath(caller.tools / 'python3')}\n{code}")
    script = str(clone / "launchers" / "job_scripts" / "in_container.sh")
    done = caller.call(script, "npu", "--", "efficientbench", "list", ASCEND_INSTALL_PATH=str(caller.folder / "ascend"))
    sources = caller.folder / "ascend" / "ascend-toolkit" / "latest" / "python" / "site-packages"
    assert (done.returncode, done.stdout) == (0, f"ours {sources}\n"), done.stderr


def test_the_one_machine_slurm_imports_nothing_from_the_working_folder(caller: Caller) -> None:
    munged = MUNGED.format(python=os.path.realpath(caller.tools / "python3"), code=SOCKET)
    executable(caller.tools / "munged", munged)
    for name in ("slurmctld", "slurmd"):
        executable(caller.tools / name, "#!/bin/bash\n")
    executable(caller.tools / "sinfo", "#!/bin/bash\necho idle2\n")
    slurm = str(ROOT / "tests" / "replicas" / "one_machine_slurm.sh")
    done = caller.call(slurm, str(caller.folder / "slurm"), "echo", "a job")
    assert (done.returncode, done.stdout) == (0, "a job\n"), done.stderr
    assert "SlurmctldPort=\n" not in (caller.folder / "slurm" / "slurm.conf").read_text()


@pytest.mark.proof
def test_scripts_with_an_environment_import_nothing_from_the_working_folder(
    tmp_path: Path, hostile: Path, clone: Path
) -> None:
    """Each script calls its command, which ends with a user's mistake."""
    caller = Caller(tmp_path, hostile)
    for name in ("data_tools", "tests"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    tools = clone / ".venv" / "bin"
    for name in ("python", "python3"):
        executable(tools / name, f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    for name, module in (("efficientbench", "cli"), ("efficientbench-data", "data_tools.cli")):
        start = f"import sys\nfrom efficientbench.{module} import main\nsys.exit(main())\n"
        executable(tools / name, f"#!{sys.executable}\n{start}")
    mark_complete(clone, "dev finetune npu")
    install_cann(tmp_path / "ascend")
    more = {"PYTHONPATH": f"{ROOT}:", "ASCEND_INSTALL_PATH": str(tmp_path / "ascend")}
    (hostile / "empty.jsonl").touch()
    work = ["--work", str(tmp_path / "work"), "--data", "empty.jsonl"]
    for words, told in (
        (["launchers/run_named.sh", "gqa_1.5C"], "gqa_1.5C"),
        (["launchers/run_named.sh", "finetune", "lora_7C"], "lora_7C"),
        (["launchers/speedrun.sh", "--depth", "-1"], "--depth"),
        (["launchers/quick_fineweb_test.sh", *work], "no usable document"),
        (["data_tools/download_fineweb_data.sh", "--no-such"], "--no-such"),
        (["data_tools/prepare_fineweb_dataset.sh", "--no-such"], "--no-such"),
        (["tests/run.sh", "--version"], "pytest"),
        (["tests/benchmarks/first_light.sh", "4", str(tmp_path)], "4 is no part"),
        (["launchers/setup_ascend.sh"], "NPU"),
    ):
        done = caller.call(str(clone / words[0]), *words[1:], **more)
        assert told in done.stdout + done.stderr, (words, done.stdout, done.stderr)


@pytest.mark.proof
def test_the_set_up_imports_nothing_from_the_working_folder(caller: Caller, clone: Path) -> None:
    done = caller.call(str(clone / "launchers" / "bootstrap.sh"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the package index cannot be reached"), done.stderr
