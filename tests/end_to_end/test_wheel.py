"""The package as others install it: a wheel in an empty environment, used from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import TINY
from support.metrics_parts import make_record
from support.repository import ROOT

from efficientbench.metrics.records.record import write_record

pytestmark = pytest.mark.proof

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a source archive, as an index would get both."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import setuptools.build_meta as build, sys; print(build.build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    archive = folder / done.stdout.splitlines()[-1]
    words = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(archive)]
    subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """`install("data")` installs the wheel with that extra and returns what runs a program of the environment."""

    def new(extra: str) -> Run:
        folder, elsewhere = tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("empty")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        options = ["--quiet", "--no-compile", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
        done = subprocess.run(
            [str(folder / "bin" / "pip"), "install", *options, wanted], capture_output=True, text=True, check=False
        )
        if "No matching distribution" in done.stderr and "Failed to establish a new connection" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

        def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [str(folder / "bin" / program), *words],
                cwd=elsewhere,
                env={**clean, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )

        return run

    return new


def where(run: Run) -> str:
    """Return the path of the command in the environment that `run` runs programs of."""
    done = run("python", "-c", "import sys; print(sys.prefix)")
    return f"{done.stdout.strip()}/bin/efficientbench"


def found_on_a_node(script: str) -> str:
    """Return the path of the command after the script's first lines, in a shell without any environment."""
    words = ["bash", "-c", f"{script}\ncommand -v efficientbench"]
    done = subprocess.run(words, env={"PATH": os.defpath}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_has_all_files_of_the_package_and_one_top_level_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"efficientbench"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    wanted = {f"efficientbench/experiments/{path.name}" for path in (ROOT / "experiments").glob("*.yaml")}
    for path in map(Path, listed):
        if path.parts[:2] == ("experiments", "sample"):
            wanted |= {f"efficientbench/{path}"}
        if path.suffix in (".py", ".sh", ".yaml", ".css", ".js", ".html"):
            wanted |= {str(path)} if path.parts[0] == "efficientbench" else set()
            wanted |= {f"efficientbench/{path}"} if path.parts[0] in ("metrics", "data_tools", "launchers") else set()
    assert wanted - set(names) == set()


def test_the_base_install_plans_and_reports_and_names_the_needed_extra(
    install: Callable[[str], Run], tmp_path: Path
) -> None:
    run = install("")
    assert "1,543,714,304" in run("efficientbench", "plan", "gqa_1.5B").stdout
    assert "moe_1.5Bx8" in run("efficientbench", "plan", "--all").stdout
    assert run("efficientbench", "--version").stdout == "efficientbench 0.1.0\n"
    for command in ("run gqa_1.5B --smoke", "export a b", "profile gqa_1.5B --smoke", "sweep --smoke --dry-run"):
        done = run("efficientbench", *command.split())
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "pip install 'efficientbench[train]'" in done.stderr
    # A login node writes the script; on the compute nodes it finds the environment that wrote it.
    job = tmp_path / "job.sh"
    place = ("--to", "slurm", "--nodes", "2", "--devices-per-node", "8", "--output", str(job))
    done = run("efficientbench", "launch", "gqa_1.5B", *place)
    assert done.returncode == 0, done.stderr
    assert "job_slurm efficientbench run" in job.read_text()
    assert found_on_a_node(job.read_text().partition("# shellcheck")[0]) == where(run)
    done = run("efficientbench-data", "verify", "a")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'efficientbench[data]'" in done.stderr
    write_record(make_record(), tmp_path / "gqa" / "record.json")
    done = run("efficientbench", "report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").is_file()
    assert done.stderr == "warning: hparams/ needs TensorBoard: pip install 'efficientbench[metrics]'\n"
    code = "import efficientbench; print(efficientbench.plan('gqa_1.5B').parameters.total)"
    assert run("python", "-c", code).stdout == "1543714304\n"
    done = run("efficientbench", "doctor")
    assert "0.1.0, from a wheel" in done.stdout
    assert "constraints.txt" not in done.stdout
    examples = run("python", "-c", "import sys; print(sys.prefix)").stdout.strip() + "/share/efficientbench/examples"
    assert {path.name for path in Path(examples).iterdir()} == {path.name for path in (ROOT / "examples").glob("*.*")}
    code = "from importlib.util import find_spec; print(find_spec('metrics'), find_spec('data_tools'))"
    assert run("python", "-c", code).stdout == "None None\n"


def test_metrics_measure_a_loop_without_torch(install: Callable[[str], Run]) -> None:
    run = install("monitor")
    assert (
        run("python", "-c", "from importlib.util import find_spec; print(find_spec('tensorboard'))").stdout == "None\n"
    )
    code = (
        "import sys; from efficientbench.metrics import EfficiencyMonitor, NvmlSensor\n"
        "with EfficiencyMonitor(warmup_steps=1) as monitor:\n"
        "    for _ in range(3):\n"
        "        with monitor.step(tokens=8): sum(range(100_000))\n"
        "print(monitor.summary()); assert 'torch' not in sys.modules\n"
    )
    done = run("python", "-c", code)
    assert "2 measured" in done.stdout, done.stderr


def test_data_tokenizes_without_torch(install: Callable[[str], Run], tmp_path: Path) -> None:
    run = install("data")
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "one line of text, and another one"}\n' * 200)
    for words in (
        ["train-tokenizer", str(text), "--vocab-size", "300", "--output", "bpe"],
        ["tokenize", str(text), "--output", "tokens", "--tokenizer", "bpe"],
        ["verify", "tokens"],
    ):
        done = run("efficientbench-data", *words)
        assert done.returncode == 0, done.stderr


def test_train_runs_a_named_model_from_any_folder(install: Callable[[str], Run]) -> None:
    run = install("train")
    done = run("efficientbench", "run", "gqa_1.5B", "--smoke", *TINY)
    assert done.returncode == 0, done.stderr
    assert "gqa_1.5B" in done.stdout
    done = run("efficientbench", "report", "output/efficientllm_benchmark")
    assert done.returncode == 0, done.stderr
    # On a node, which has the environment of no shell, the set-up that the script calls finds this installation.
    job = run("efficientbench", "launch", "gqa_1.5B", "--to", "slurm", "--devices-per-node", "0").stdout
    assert found_on_a_node(job.partition("arguments=")[0]) == where(run)
