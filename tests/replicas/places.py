"""Places where a run can be started: a private Slurm, and network namespaces, where this machine can make them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import ROOT, environment, until

SLURM_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "scancel", "sinfo")


def job_environment(**changes: str) -> dict[str, str]:
    """That of a shell in which this checkout is set up, so that scripts find it so."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if shutil.which("efficientbench", path=path) is None:
        pytest.skip("the package is not installed in this environment, so a script would set up one of its own")
    return environment(PATH=path, VIRTUAL_ENV=sys.prefix, **changes)


class Slurm:
    """A Slurm of two nodes on this machine."""

    def __init__(self, configuration: Path) -> None:
        self._environment = job_environment(SLURM_CONF=str(configuration))

    def call(self, *command: str, cwd: Path | None = None) -> str:
        """What a program of Slurm prints; it has to succeed."""
        done = subprocess.run(
            command, cwd=cwd, env=self._environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, script: str, folder: Path) -> str:
        """Hands a script to sbatch from `folder`, where the job's output goes; returns the job's number."""
        (folder / "job.sh").write_text(script)
        return self.call("sbatch", "--parsable", "job.sh", cwd=folder)

    def field(self, job: str, name: str) -> str:
        """A field of a job: its `JobState` or, of one of an array's tasks, its `JobId`."""
        fields = self.call("scontrol", "show", "job", "--oneliner", job).split()
        return next(field for field in fields if field.startswith(f"{name}=")).partition("=")[2]

    def wait_until(self, job: str, state: str, output: Callable[[], str]) -> None:
        """Returns once a job is in a state; fails, with what it said, where it ends in another."""

        def reached() -> bool:
            found = self.field(job, "JobState")
            ended = found in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
            assert found == state or not ended, f"job {job} is {found}: {output()}"
            return found == state

        until(reached, f"job {job} is {state}: {output()}")


@contextmanager
def slurm_of_two_nodes() -> Iterator[Slurm]:
    """Runs while the block does; skips where it cannot."""
    missing = [name for name in SLURM_PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed (Debian: slurmctld slurmd slurm-client munge): no {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("a private Slurm is started by root alone")
    if socket.gethostname().partition(".")[0] == "localhost":
        pytest.skip("the private Slurm needs two names for its nodes, and this host's is localhost")
    # Not pytest's own folder, whose path is longer than a socket's may be.
    folder = Path(tempfile.mkdtemp(prefix="slurm_", dir="/tmp"))
    command = ["bash", str(ROOT / "tests" / "replicas" / "one_machine_slurm.sh"), str(folder), "cat"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        # `cat` answers once the nodes are up, and ends with its input.
        process.stdin.write("up\n")
        process.stdin.flush()
        assert process.stdout.readline() == "up\n", process.communicate()[1]
        yield Slurm(folder / "slurm.conf")
    finally:
        process.communicate(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Host:
    """A network namespace: a host as far as the network goes, with one interface to the other."""

    namespace: str
    interface: str
    address: str

    def command(self, *command: str) -> list[str]:
        """The command as this host runs it."""
        return ["ip", "netns", "exec", self.namespace, *command]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two namespaces that a virtual cable joins, on addresses for documentation; skips where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    tag = uuid.uuid4().hex[:6]
    hosts = [Host(f"eb{number}_{tag}", f"cable{number}", f"192.0.2.{number + 1}") for number in range(2)]
    with ExitStack() as stack:
        for host in hosts:
            _ip("netns", "add", host.namespace)
            stack.callback(subprocess.run, ["ip", "netns", "del", host.namespace], check=False)
        one, other = (("name", host.interface, "netns", host.namespace) for host in hosts)
        _ip("link", "add", *one, "type", "veth", "peer", *other)
        for host in hosts:
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.interface)
            for interface in ("lo", host.interface):
                _ip("-n", host.namespace, "link", "set", interface, "up")
        yield hosts[0], hosts[1]


def unplug(host: Host) -> None:
    """Packets to and from a host are lost from now on."""
    _ip("-n", host.namespace, "link", "set", host.interface, "down")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def scripts(*starts: tuple[list[str], Mapping[str, str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Commands that run while the block does, each with its environment; killed where the block leaves them running."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=dict(variables), **pipes) for command, variables in starts]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
