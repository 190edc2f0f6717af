"""Containers and modules: command lines of docker, apptainer and srun, run by replicas that know their options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from replicas.ascend_machine import executable
from support.repository import ROOT
from typer.testing import CliRunner

from efficientbench.basics.errors import LaunchError
from efficientbench.cli.app import app
from efficientbench.launchers.job_scripts.container import BARE, Container, Surroundings
from efficientbench.launchers.job_scripts.shell_script import check
from efficientbench.launchers.job_scripts.slurm import slurm_script
from efficientbench.launchers.job_scripts.torchrun import Meeting, torchrun_script

SCRIPTS = ROOT / "launchers" / "job_scripts"
IMAGE = "registry.example:5000/lab/torch:25.03"
ARGUMENTS = ("gqa_1.5B", "$(touch pwned)", "a\nb", "--", "'; touch pwned; '", "\udcff", "")
SECRET = "kept from the list of processes"

# Takes what `docker run` takes, and runs the command on this machine with the environment that docker would give it.
DOCKER = r"""#!/bin/bash
printf '%s\0' "$@" >"{folder}/docker"
[[ "$1" == run ]] || exit 125
shift
kept=()
while [[ "$1" == -* ]]; do
    case "$1" in
        --rm | --init) shift ;;
        --env) [[ -z "${{!2+x}}" ]] || kept+=("$2=${{!2}}"); shift 2 ;;
        --workdir) work="$2" && shift 2 ;;
        --network | --ipc | --ulimit | --user | --volume | --device | --gpus | --group-add) shift 2 ;;
        *) echo "unknown flag: $1" >&2; exit 125 ;;
    esac
done
shift
cd "$work" && exec env -i PATH="$PATH" "${{kept[@]}}" "$@"
"""
APPTAINER = r"""#!/bin/bash
printf '%s\0' "$@" >"{folder}/apptainer"
[[ "$1" == exec ]] || exit 255
shift
while [[ "$1" == -* ]]; do
    case "$1" in
        --nv) shift ;;
        --pwd) work="$2" && shift 2 ;;
        --bind) shift 2 ;;
        *) echo "unknown flag: $1" >&2; exit 255 ;;
    esac
done
shift
cd "$work" && exec "$@"
"""
SRUN = r"""#!/bin/bash
printf '%s\0' "$@" >"{folder}/srun"
while [[ "$1" == --* ]]; do shift; done
SLURM_NODEID=0 exec "$@"
"""
SHOW = 'printf "%s\\0" "$@" >"{folder}/{name}"\nenv -0 >"{folder}/{name}.env"\npwd >"{folder}/{name}.pwd"\n'


class Node:
    """A node of which each program records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.work = folder / "seen", folder / "bin", folder / "work $(touch pwned) 'x' \"y\""
        for each in (self.folder, self.work):
            each.mkdir()
        for name, program in (("docker", DOCKER), ("apptainer", APPTAINER), ("srun", SRUN)):
            executable(self.bin / name, program.format(folder=self.folder))
        for name in ("efficientbench", "python3"):
            executable(self.bin / name, "#!/bin/bash\n" + SHOW.format(folder=self.folder, name=name))
        executable(self.bin / "scontrol", "#!/bin/bash\necho node0\n")

    def run(self, script: str, **variables: str) -> None:
        check(script)
        environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.work), "VIRTUAL_ENV": "/no/such"}
        environment |= {"EFFICIENTBENCH_SECRET": SECRET, "SOMEBODYS_TOKEN": "x", **variables}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=False, timeout=30)
        assert (done.returncode, done.stderr) == (0, b"")
        assert list(self.work.iterdir()) == []

    def words(self, name: str) -> list[str]:
        return [os.fsdecode(word) for word in (self.folder / name).read_bytes().split(b"\0")[:-1]]

    def variables(self, name: str) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.words(f"{name}.env"))

    def folder_of(self, name: str) -> str:
        return (self.folder / f"{name}.pwd").read_text().rstrip("\n")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def around(engine: str, image: str = IMAGE, *mounts: str, modules: tuple[str, ...] = ()) -> Surroundings:
    return Surroundings(modules, Container(image, engine, tuple(map(Path, mounts))))  # type: ignore[arg-type]


def of_slurm(node: Node, surroundings: Surroundings) -> None:
    script = slurm_script("run", [ARGUMENTS], 1, 8, [], node.work, around=surroundings)
    place = {"SLURM_JOB_NODELIST": "node0", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": "2"}
    node.run(script, SLURM_JOB_ID="7", **place)
    assert node.words("efficientbench") == ["run", *ARGUMENTS]
    seen = node.variables("efficientbench")
    assert (seen["NODE_RANK"], seen["NNODES"], seen["MASTER_ADDR"]) == ("0", "1", "node0")
    assert (seen["EFFICIENTBENCH_SECRET"], seen["EFFICIENTBENCH_VENV"]) == (SECRET, ".venv-container")
    assert "VIRTUAL_ENV" not in seen
    assert node.folder_of("efficientbench") == str(node.work)


def test_pyxis_gets_its_options_from_srun(node: Node) -> None:
    of_slurm(node, around("pyxis", IMAGE, "/data/text"))
    given = node.words("srun")
    mounts = ",".join(f"{each}:{each}" for each in (node.work, ROOT, "/data/text"))
    assert given[:3] == [
        "--container-image=registry.example:5000#lab/torch:25.03",
        f"--container-mounts={mounts}",
        f"--container-workdir={node.work}",
    ]
    assert "--kill-on-bad-exit=0" in given


def test_apptainer_starts_on_the_node(node: Node) -> None:
    of_slurm(node, around("apptainer", "nvcr.io/nvidia/pytorch:25.03-py3", "/data/text"))
    binds = [word for each in (node.work, ROOT, "/data/text") for word in ("--bind", f"{each}:{each}")]
    given = node.words("apptainer")
    assert given[: 3 + len(binds)] == ["exec", "--pwd", str(node.work), *binds]
    assert "docker://nvcr.io/nvidia/pytorch:25.03-py3" in given


def test_docker_gets_the_needed_variables_without_secrets_on_its_command_line(node: Node) -> None:
    of_slurm(node, around("docker", IMAGE, "/data/text"))
    given = node.words("docker")
    for option, value in (
        ("--network", "host"),
        ("--user", f"{os.getuid()}:{os.getgid()}"),
        ("--volume", "/data/text:/data/text"),
    ):
        assert (option, value) in list(zip(given, given[1:], strict=False))
    assert not [word for word in given if SECRET in word]
    # The home is the working folder here, and docker refuses two mounts at one place.
    assert given.count(f"{node.work}:{node.work}") == 1
    assert "SOMEBODYS_TOKEN" not in node.variables("efficientbench")


def test_torchrun_itself_runs_in_the_container(node: Node) -> None:
    script = torchrun_script("run", ARGUMENTS, 2, Meeting(), node.work, around=around("docker"))
    node.run(script, MASTER_ADDR="host")
    words, seen = node.words("python3"), node.variables("python3")
    assert (words[0], words[2]) == ("-c", "torch.distributed.run")
    assert words[words.index("--no-python") + 1 :][3:] == ["efficientbench", "run", *ARGUMENTS]
    assert "--rdzv-endpoint=host:29500" in words
    assert (seen["EFFICIENTBENCH_TRAINING_PORT"], seen["EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S"]) == ("29501", "600")
    assert "SOMEBODYS_TOKEN" not in seen


def test_an_image_without_efficientbench_gets_it_in_a_separate_folder(node: Node, tmp_path: Path) -> None:
    """The host's .venv, whose Python the image lacks, stays as it is."""
    clone = tmp_path / "clone" / "launchers"
    for name in ("job_scripts/in_container.sh", "job_scripts/job.sh", "environment/ascend_env.sh"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text((ROOT / "launchers" / name).read_text())
    (clone / "bootstrap.sh").write_text(
        "_bootstrap_clean_path() { :; }\n"
        f'bootstrap() {{ echo "$EFFICIENTBENCH_VENV $*"; PATH="{node.bin}:$PATH"; }}\n'
    )
    command = ["bash", clone / "job_scripts" / "in_container.sh", "finetune", "--", "efficientbench", "finetune"]
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(node.work), "CONDA_PREFIX": "/host"}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (".venv-container finetune\n", "")
    assert node.words("efficientbench") == ["finetune"]


@pytest.mark.parametrize("engine", ["docker", "apptainer"])
def test_containers_get_the_accelerators_of_the_node(tmp_path: Path, engine: str) -> None:
    def options(*files: str) -> list[str]:
        dev = tmp_path / str(len(list(tmp_path.iterdir())))
        for name in files:
            (dev / name).mkdir(parents=True)
        script = f"source '{SCRIPTS}/container.sh'; options=(); container_devices {engine} '{dev}'; "
        script += 'printf "%s\\n" "${options[@]}"'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        return done.stdout.replace(str(dev), "DEV").split()

    assert options("null") == []
    ascend = options("davinci0", "davinci1", "davinci_manager", "hisi_hdc")
    if engine == "docker":
        assert options("nvidiactl", "infiniband") == ["--gpus", "all", "--device", "DEV/infiniband"]
        assert ascend[1::2][:4] == ["DEV/davinci0", "DEV/davinci1", "DEV/davinci_manager", "DEV/hisi_hdc"]
    else:
        assert options("nvidiactl", "infiniband") == ["--nv"]
        assert not [word for word in ascend if "DEV" in word]


def test_modules_are_loaded_before_the_environment_is_made(tmp_path: Path) -> None:
    script = slurm_script("run", [()], 1, 0, [], tmp_path, around=Surroundings(("cuda/13.0", "gcc/13")))
    assert script.index("\njob_modules cuda/13.0 gcc/13\n") < script.index("\nbootstrap\n")
    inside = torchrun_script("run", (), 1, Meeting(), tmp_path, around=around("docker", modules=("docker",)))
    assert "\njob_modules docker\n" in inside
    assert "\nbootstrap" not in inside
    assert "job_modules" not in slurm_script("run", [()], 1, 0, [], tmp_path, around=BARE)

    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "bash").write_text(
        'module() { local unset_one=$NO_SUCH_NAME; false; echo "$*"; [[ $2 != no ]]; }\n'
    )
    command = ["bash", "-c", f"set -euo pipefail; source '{SCRIPTS}/job.sh'; job_modules \"$@\"; echo $-", "script"]
    place = {"PATH": os.environ["PATH"], "MODULESHOME": str(tmp_path)}
    done = subprocess.run([*command, "a", "b/2"], env=place, capture_output=True, text=True, check=True)
    *loaded, flags = done.stdout.splitlines()
    assert (loaded, {"e", "u"} <= set(flags)) == (["load a", "load b/2"], True)
    for names, home, message in (
        (("a", "no", "c"), tmp_path, "error: module load no failed on node "),
        (("a",), tmp_path / "none", "has no module command"),
    ):
        place["MODULESHOME"] = str(home)
        refused = subprocess.run([*command, *names], env=place, capture_output=True, text=True, check=False)
        assert (refused.returncode, message in refused.stderr, "load c" in refused.stdout) == (2, True, False)


def test_a_node_without_the_container_engine_is_reported(tmp_path: Path) -> None:
    for name in ("bash", "uname"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    for engine in ("docker", "apptainer"):
        command = ["bash", str(SCRIPTS / "container.sh"), engine, "image", "/", "--", "true"]
        done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
        assert (done.returncode, f"error: {engine} is not on the PATH of node" in done.stderr) == (2, True)


@pytest.mark.parametrize("image", ["-v", "--privileged", "a b", "a\nb", "", "a,b", "$(touch pwned)"])
def test_an_invalid_image_is_refused(image: str) -> None:
    with pytest.raises(LaunchError, match="names no image"):
        Container(image, "pyxis")


def test_image_files_are_found_from_the_working_folder() -> None:
    for engine in ("pyxis", "apptainer"):
        words = Container("images/torch.sif", engine).words(Path("/jobs"), [])  # type: ignore[arg-type]
        assert any(word.endswith("/jobs/images/torch.sif") for word in words)
    with pytest.raises(LaunchError, match="docker takes the name of an image"):
        Container("images/torch.sif", "docker")
    with pytest.raises(LaunchError, match="/a:b has a colon or a comma"):
        Container(IMAGE, "docker", (Path("/a:b"),)).words(Path("/jobs"), [])
    with pytest.raises(LaunchError, match="is not a module name"):
        Surroundings(("$(touch pwned)",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "torchrun", "--container", IMAGE, "--engine", "pyxis"], "pyxis works with Slurm alone"),
        (["--to", "slurm", "--engine", "docker"], "need a container"),
        (["--to", "slurm", "--mount", "/data"], "need a container"),
        (["--to", "slurm", "--claim", "data"], "--claim works with Kubernetes alone"),
        (["--to", "kubernetes", "--container", IMAGE], "needs --container IMAGE and --claim"),
        (["--to", "kubernetes", "--claim", "data"], "needs --container IMAGE and --claim"),
        (["--to", "kubernetes", "--container", IMAGE, "--claim", "data", "--module", "a"], "--module"),
        (
            ["--to", "kubernetes", "--container", IMAGE, "--claim", "data", "--mount", "/a"],
            "--mount work with torchrun",
        ),
        (
            ["--to", "kubernetes", "--container", IMAGE, "--claim", "data", "--sbatch", "a=b"],
            "--sbatch works with Slurm alone",
        ),
    ],
)
def test_options_of_another_container_engine_are_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["launch", "gqa_1.5B", *arguments])
    assert isinstance(done.exception, LaunchError)
    assert message in str(done.exception)


def test_the_real_docker_knows_every_option() -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    known = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True, check=True).stdout
    script = (SCRIPTS / "container.sh").read_text()
    ours = set(re.findall(r"(?<![\w-])--[a-z-]+", script[script.index("container_docker()") :].partition("\n}\n")[0]))
    assert len(ours) > 8
    assert [option for option in sorted(ours) if not re.search(rf"^ .*{option}\b", known, re.MULTILINE)] == []
