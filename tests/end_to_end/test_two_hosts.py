"""Two hosts: network namespaces of this machine, each with a loopback of its own and one interface to the other."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from replicas.places import Host, job_environment, scripts, two_hosts, unplug
from support.command_line import TIME_LIMIT_S, command, efficientbench, losses, record

pytestmark = pytest.mark.proof

Tiny = tuple[str, ...]


def start(
    host: Host, master: Host, tiny: Tiny, *words: str, interface: str = "", **variables: str
) -> tuple[list[str], dict[str, str]]:
    """The command line of one of two nodes, on a host, and its environment."""
    place = {
        "MASTER_ADDR": master.address,
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "0" if host is master else "1",
        "GLOO_SOCKET_IFNAME": interface or host.interface,
        "EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S": "60",
    }
    return host.command(*command(*tiny, "dlc", *words)), job_environment(**place, **variables)


def by_torchrun(words: Tiny, folder: Path) -> None:
    """Write a script into a folder, and run it on both hosts to its end."""
    place = ("--to", "torchrun", "--nodes", "2", "--devices-per-node", "0", "--rendezvous-timeout", "60")
    efficientbench("launch", *words, *place, "--output", "job.sh", cwd=folder, expect=0, stderr="")
    with two_hosts() as hosts:
        starts = []
        for host in hosts:
            # Both have this machine's name, which leads to the loopback of each.
            where = {"MASTER_ADDR": hosts[0].address, "LOCAL_ADDR": host.address}
            starts.append((host.command("bash", str(folder / "job.sh")), job_environment(**where)))
        with scripts(*starts) as nodes:
            said = [node.communicate(timeout=TIME_LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    # An agent may warn of the other, which has ended before it.
    assert not any("Traceback" in err for _, err in said), said


def test_two_hosts_train_together_by_torchrun(tiny: Tiny, tmp_path: Path) -> None:
    by_torchrun((*tiny[1:], "faults.preflight_s=1"), tmp_path)
    content = record(tmp_path / "gqa_1.5B_smoke")
    assert (content["status"], content["dp"]) == ("completed", 2)
    found = content["preflight"]
    assert (found["time_s"], found["devices"], found["links"]) == (1.0, 2, 2)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
def test_two_hosts_fine_tune_together_by_torchrun(tmp_path: Path) -> None:
    short = ("training.steps=4", "training.validate_every_steps=0", "data.validation_examples=24", "cpu_ranks=1")
    by_torchrun(("lora_tiny", "device=cpu", f"output={tmp_path}", f"cache={tmp_path}/cache", *short), tmp_path)
    content = record(tmp_path / "lora_tiny")
    assert (content["status"], content["dp"], content["config"]["zero"]["stage"]) == ("completed", 2, 3)
    assert len(losses(tmp_path / "lora_tiny")) == 4


def test_a_missing_or_isolated_interface_is_named(tiny: Tiny) -> None:
    with two_hosts() as (first, second):
        wrong = start(first, first, tiny, interface="cable7")
        loopback = start(second, first, tiny, interface="lo")
        with scripts(wrong, loopback) as nodes:
            said = [node.communicate(timeout=TIME_LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2]
    assert said[0][1] == (
        "error: GLOO_SOCKET_IFNAME is 'cable7', and node 0 has no interface cable7: it has lo, cable0\n"
    )
    assert re.fullmatch(
        "error: GLOO_SOCKET_IFNAME is 'lo', the loopback of node 1, and MASTER_ADDR .*"
        "name the interface to the other nodes, one of cable1\n",
        said[1][1],
        re.DOTALL,
    )


def test_an_unreachable_host_is_named(tiny: Tiny) -> None:
    limit = {"EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S": "3"}
    with two_hosts() as (first, second):
        unplug(first)
        starts = [start(host, first, tiny) for host in (first, second)]
        with scripts(*((words, {**variables, **limit}) for words, variables in starts)) as nodes:
            said = [node.communicate(timeout=TIME_LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2]
    assert "error: node 1 of 2 did not reach 192.0.2.1:29500 within 3 s" in said[0][1]
    assert "error: node 1 could not meet node 0 at 192.0.2.1:29500 within 3 s" in said[1][1]
