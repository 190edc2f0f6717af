"""Scripts that start runs elsewhere: what they pass to torchrun and Slurm, and that no argument becomes a command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.command_line import ROOT, efficientbench
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError, LaunchError
from efficientbench.cli.app import app
from efficientbench.cli.launch_script import Machines, NamedRun, by_slurm, by_torchrun
from efficientbench.config.matrix import load_matrix
from efficientbench.config.scripts import write_scripts
from efficientbench.launchers.job_scripts.shell_script import check, write
from efficientbench.launchers.job_scripts.slurm import slurm_script
from efficientbench.launchers.job_scripts.torchrun import Meeting, torchrun_script

HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a\ntouch pwned\n",
    "a\r\n#SBATCH --wrap=touch",
    "../../../etc/passwd",
    "-n --help",
    "~ * ? [a-z] {a,b} !! \\ \\' # &",
    "[0]=x",
    "“quoted” ’ü 中",
    "\udcff",
    "",
)
"""What a shell would act on, were it not quoted."""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for scripts, in a repository and a working directory whose names are hostile.

    The functions that the scripts call print their arguments.
    """
    root = tmp_path / "a $(touch pwned) 'repository'\nof \"mine\""
    (root / "launchers").mkdir(parents=True)
    show = 'printf "%s\\0" "$@"'
    (root / "launchers" / "job.sh").write_text(
        f"bootstrap() {{ :; }}\njob_slurm() {{ {show}; }}\njob_torchrun() {{ {show}; }}\njob_c10d() {{ echo conf; }}\n"
        "job_training_port() { echo 1; }\n"
    )
    monkeypatch.setattr("efficientbench.launchers.job_scripts.shell_script.JOB_SCRIPT", root / "launchers" / "job.sh")
    folder = tmp_path / "work; $(touch pwned) `touch pwned` \"'\n"
    folder.mkdir()
    return folder


def arguments_of(script: str, folder: Path, **environment: str) -> list[str]:
    """Check, write and run a script; return the arguments that it passes on. It must do nothing else."""
    check(script)
    write(script, folder / "job.sh")
    before = sorted(folder.parent.rglob("*"))
    clean = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(["bash", folder / "job.sh"], cwd=folder, env=clean, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(folder.parent.rglob("*")) == before
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def test_hostile_arguments_reach_the_run_unchanged(stub: Path) -> None:
    assert arguments_of(slurm_script("run", [HOSTILE], 1, 0, [], stub), stub) == ["efficientbench", "run", *HOSTILE]
    script = torchrun_script("run", HOSTILE, 2, Meeting(), stub)
    arguments = arguments_of(script, stub, MASTER_ADDR="$(touch pwned)")
    assert arguments[arguments.index("--") :] == ["--", "efficientbench", "run", *HOSTILE]
    assert "--rdzv-endpoint=$(touch pwned):29500" in arguments


@pytest.mark.parametrize("port", ["x[$(touch pwned)]", "$(touch pwned)", "1+1", "0", "65535", "99999", "-1", "08", "a"])
def test_a_port_in_the_environment_that_is_no_number_is_refused(tmp_path: Path, port: str) -> None:
    """An index in an arithmetic expression would be run."""
    script = f"source '{ROOT}/launchers/job_scripts/job.sh'; job_training_port"
    clean = {"PATH": os.environ["PATH"], "MASTER_PORT": port}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr.startswith("error: MASTER_PORT is ")
    clean["MASTER_PORT"] = "29500"
    assert subprocess.run(["bash", "-c", script], env=clean, capture_output=True, check=True).stdout == b"29501"


@pytest.mark.parametrize("hostile", HOSTILE[:-1])
def test_a_hostile_rendezvous_id_is_one_argument(stub: Path, hostile: str) -> None:
    arguments = arguments_of(torchrun_script("run", [], 2, Meeting(run_id=hostile), stub), stub, MASTER_ADDR="a")
    assert f"--rdzv-id={hostile}" in arguments


def test_each_task_of_a_slurm_array_has_its_own_arguments(stub: Path) -> None:
    script = slurm_script("runs", [["gqa_0.5B", HOSTILE[0]], ["mqa_0.5B", HOSTILE[4]]], 1, 0, [], stub)
    assert "#SBATCH --array=0-1\n" in script
    assert arguments_of(script, stub, SLURM_ARRAY_TASK_ID="0")[2:] == ["gqa_0.5B", HOSTILE[0]]
    assert arguments_of(script, stub, SLURM_ARRAY_TASK_ID="1")[2:] == ["mqa_0.5B", HOSTILE[4]]
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "SLURM_ARRAY_TASK_ID": "$(touch pwned)"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no run has the index $(touch pwned)\n"


def test_a_sweep_becomes_a_slurm_array_of_its_runs() -> None:
    arguments = ["launch", "training.steps=20", "--only", "gqa,mqa", "--sizes", "0.5B", "--set", "parallel.pp=1,2"]
    done = CliRunner().invoke(app, [*arguments, "--to", "slurm", "--smoke"], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "#SBATCH --job-name=4_runs\n" in done.stdout
    assert "#SBATCH --array=0-3\n" in done.stdout
    tasks = ["".join(text.split("\n        )")[0].split()) for text in done.stdout.split("arguments=(")[1:]]
    begin = "dlc--smoketraining.steps=20"
    assert tasks == [
        f"{name}{begin}parallel.pp={stages}label=pp={stages}" for name in ("mqa_0.5B", "gqa_0.5B") for stages in (1, 2)
    ]
    for wrong, named, others in (
        # 3 stages hold no equal share of the layers; what is wrong with every run is named once.
        ("parallel.pp=1,3", "gqa_0.5B training.steps=20 parallel.pp=3", "parallel.pp=1"),
        ("parallel.pq=1,2", "parallel.pq", "gqa_0.5B"),
    ):
        done = CliRunner().invoke(app, [*arguments[:-1], wrong, "--to", "slurm", "--smoke"])
        assert isinstance(done.exception, ConfigError)
        assert named in str(done.exception)
        assert others not in str(done.exception)
    for wrong in (["launch", "--to", "slurm"], ["launch", "gqa_1.5B", "--only", "gqa", "--to", "slurm"]):
        refused = CliRunner().invoke(app, wrong)
        assert (refused.exit_code, "either the name of a run" in " ".join(refused.stderr.split())) == (2, True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("partition=gpu\n#SBATCH --wrap=touch", "has characters that sbatch would not read"),
        ("comment=a b", "has characters"),
        ("comment='a'", "has characters"),
        ('comment="a', "has characters"),
        ("comment=a#b", "has characters"),
        ("comment=", "has characters"),
        ("comment\n=a", "is not an option of sbatch"),
        ("$(touch)", "is not an option of sbatch"),
        ("nodes=4", "nodes is decided by --nodes"),
        ("array=0-3", "array is decided by the runs that are named"),
    ],
)
def test_options_that_sbatch_would_misread_are_refused(option: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        slurm_script("run", [[]], 1, 0, [option], Path("/"))


def options(*sbatch: str, devices: int = 8, runs: int = 1) -> list[str]:
    script = slurm_script("gqa", [[]] * runs, 2, devices, sbatch, Path("/"))
    return [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_sbatch_options_have_defaults_that_the_user_may_replace() -> None:
    asked = options()
    assert {"job-name=gqa", "nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "exclusive", "mem=0"} <= set(asked)
    assert {"requeue", "open-mode=append", "signal=B:TERM@120", "output=%x-%j.out"} <= set(asked)
    assert "gpus-per-node=8" not in options(devices=0)
    asked = options("gres=npu:8", "time=04:00:00", "signal=B:TERM@300", "no-requeue", "cpus-per-task=16")
    assert {"gres=npu:8", "time=04:00:00", "signal=B:TERM@300", "no-requeue", "cpus-per-task=16"} <= set(asked)
    assert not {"gpus-per-node=8", "exclusive", "mem=0", "requeue", "signal=B:TERM@120"} & set(asked)
    assert {"array=0-2", "output=%x-%A_%a.out"} <= set(options(runs=3))


def test_sbatch_reads_every_option_before_the_first_command() -> None:
    lines = by_slurm([NamedRun("gqa_1.5B", (), False)], Machines(1, 8), []).splitlines()
    first = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])


@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_torchrun_gets_nodes_rendezvous_and_the_command(stub: Path, rendezvous: str) -> None:
    meeting = Meeting(rendezvous, "", 29700, 45)  # type: ignore[arg-type]
    script = by_torchrun([NamedRun("gqa_1.5B", (), True)], Machines(2, 4), meeting)
    arguments = arguments_of(
        script.replace(os.fspath(Path.cwd()), os.fspath("/")), stub, MASTER_ADDR="host", NODE_RANK="1"
    )
    wanted = {
        "c10d": ["--rdzv-backend=c10d", "--rdzv-endpoint=host:29700", "--rdzv-conf=conf"],
        "static": [
            "--rdzv-backend=static",
            "--master-addr=host",
            "--master-port=29700",
            "--node-rank=1",
            "--rdzv-conf=timeout=45",
        ],
    }
    begin = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=0", "--rdzv-id=gqa_1.5B_smoke"]
    end = ["--", "efficientbench", "run", "gqa_1.5B", "dlc", "--smoke"]
    assert arguments == [*begin, *wanted[rendezvous], *end]


def test_a_torchrun_script_refuses_to_start_without_master_addr_or_node_rank(stub: Path) -> None:
    script = torchrun_script("run", [], 2, Meeting("static"), stub)
    for environment, message in (
        ({}, "MASTER_ADDR: the host of node 0"),
        ({"MASTER_ADDR": "a"}, "NODE_RANK: number of"),
    ):
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert message in done.stderr


@pytest.mark.parametrize("script", ["if true; then\n", "echo 'a\n", "#!/usr/bin/env bash\nrm -rf $1/*\ncd $2\n"])
def test_an_invalid_script_is_not_written(script: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    with pytest.raises(LaunchError, match="the script was not written"):
        check(script)


def test_a_script_is_checked_by_bash_where_shellcheck_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficientbench.launchers.job_scripts.shell_script.shutil.which", lambda name: None)
    check("echo a\n")
    with pytest.raises(LaunchError, match="bash -n does not accept it"):
        check("if\n")


def test_a_script_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no/such/job.sh cannot be written: No such file"):
        write("echo a\n", tmp_path / "no" / "such" / "job.sh")
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="file/job.sh cannot be written: Not a directory"):
        write("echo a\n", tmp_path / "file" / "job.sh")
    (tmp_path / "file").unlink()
    with pytest.raises(LaunchError, match=r"--output: \. is a folder: name a file"):
        write("echo a\n", Path("."))
    write("echo a\n", tmp_path / "$(touch pwned) `x` '.sh")
    assert [path.name for path in tmp_path.iterdir()] == ["$(touch pwned) `x` '.sh"]
    assert os.access(tmp_path / "$(touch pwned) `x` '.sh", os.X_OK)


@pytest.mark.parametrize("name", ["$(touch pwned)", "../../etc", "a'b", 'a"b', "gqa\n", "gqa_1.5B\n", "-n", "", "a b"])
def test_a_hostile_run_name_is_refused(tmp_path: Path, name: str) -> None:
    """Names of runs become folders, jobs and arguments in scripts."""
    with pytest.raises(ConfigError, match="there is no run called"):
        NamedRun(name, (), False).check(Machines(1, 8))
    matrix = tmp_path / "matrix.yaml"
    quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    for variant, size, suite in ((quoted, "s", "x"), ("v", quoted, "x"), ("v", "s", quoted)):
        matrix.write_text(
            f'sizes: {{"{size}": {{}}}}\nvariants: {{"{variant}": {{}}}}\n'
            f'suites: {{"{suite}": [{{variants: ["{variant}"], sizes: ["{size}"]}}]}}\n'
        )
        with pytest.raises(ConfigError, match="should match pattern"):
            load_matrix(matrix)
    write_scripts(tmp_path / "experiments")
    assert not list(tmp_path.rglob("*pwned*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gqa_1.5B", "--to", "slurm", "parallel.tp=5"], "parallel.tp"),
        (["gqa_1.5B", "--to", "slurm", "--nodes", "3", "parallel.dp=4"], "cannot be spread evenly over 3 nodes"),
        (["gqa_1.5B", "--to", "slurm", "training.seqlen=5"], "did you mean training.seq_len"),
        (["gqa_15B", "--to", "slurm"], "did you mean gqa_1.5B"),
        (["--only", "attention", "--to", "torchrun"], "torchrun starts one run, and 12 are named"),
        (["gqa_1.5B", "--to", "torchrun", "--set", "parallel.pp=1,2"], "torchrun starts one run, and 2 are named"),
        (["gqa_1.5B", "--to", "slurm", "--repeat", "2", "--set", "training.seed=1,2"], "give either --repeat or --set"),
        (["gqa_1.5B", "--to", "torchrun", "--port", "65535"], "--port: 65535"),
        (["gqa_1.5B", "--to", "torchrun", "--rendezvous-timeout", "0"], "--rendezvous-timeout: 0 s"),
        (["gqa_1.5B", "--to", "torchrun", "--sbatch", "partition=gpu"], "--sbatch works with Slurm alone"),
        (["gqa_1.5B", "--to", "slurm", "--port", "29600"], "--port work with torchrun alone"),
        (["gqa_1.5B", "--to", "torchrun", "--output", "/no/such/folder/job.sh"], "cannot be written"),
    ],
)
def test_impossible_jobs_are_refused_before_submission(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["launch", *arguments])
    assert isinstance(done.exception, ConfigError | LaunchError)
    assert message in str(done.exception)
    assert done.stdout == ""


def test_a_dry_run_checks_the_job_says_its_cost_and_writes_nothing(tmp_path: Path) -> None:
    words = ["launch", "gqa_1.5B", "--to", "torchrun", "--gpus", "8", "--output", str(tmp_path / "job.sh"), "--dry-run"]
    done = CliRunner().invoke(app, [*words, "--device", "H100 SXM"], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, "torchrun: 1 run on 1 node each; no script written\n")
    assert done.stderr.startswith("whole budget: ")
    assert list(tmp_path.iterdir()) == []
    refused = CliRunner().invoke(app, [*words, "parallel.tp=3"])
    assert isinstance(refused.exception, ConfigError)
    short = CliRunner().invoke(app, ["launch", "gqa_1.5B", "--to", "k8s"])
    assert "--to kubernetes needs --container IMAGE" in str(short.exception)


def test_the_command_prints_or_writes_the_script(tmp_path: Path) -> None:
    arguments = ("launch", "gqa_1.5B", "--smoke", "--to", "slurm", "--sbatch", "partition=gpu", "--repeat", "3")
    printed = efficientbench(*arguments, "--data", "a $(b)", cwd=tmp_path)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert f"cd -- {tmp_path}\n" in printed.stdout
    assert "    --repeat\n    3\n    'data.path=a $(b)'\n" in printed.stdout
    written = efficientbench(*arguments, "--data", "a $(b)", "--output", "job.sh", cwd=tmp_path)
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    assert (tmp_path / "job.sh").read_text() == printed.stdout
    refused = efficientbench(*arguments, "dsw", cwd=tmp_path)
    assert refused.returncode == 2
    assert "dsw: a script for nodes runs in the mode dlc" in refused.stderr


def test_every_script_prints_its_help() -> None:
    for script in (ROOT / "launchers").glob("*.sh"):
        asked = subprocess.run(["bash", str(script), "--help"], capture_output=True, text=True, check=False)
        assert (asked.returncode, asked.stderr) == (0, ""), script
        assert f"launchers/{script.name}" in asked.stdout
