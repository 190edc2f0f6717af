"""Scripts of `launch --to torchrun`, started as on two nodes: two agents of torchrun that meet on the loopback."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from replicas.places import job_environment, scripts
from support.command_line import LONG, TIME_LIMIT_S, efficientbench, losses, record, until

pytestmark = pytest.mark.proof

Tiny = tuple[str, ...]


def script(tiny: Tiny, tmp_path: Path, *words: str) -> list[str]:
    """The command of a node of two."""
    place = ("--to", "torchrun", "--nodes", "2", "--devices-per-node", "0", "--rendezvous-timeout", "60")
    efficientbench("launch", *tiny[1:], *place, *words, "--output", "job.sh", cwd=tmp_path, expect=0, stderr="")
    return ["bash", str(tmp_path / "job.sh")]


def variables(port: int, node: int = 0) -> dict[str, str]:
    # What PAI-DLC or a user's shell sets besides must not be taken for torchrun's own.
    others = {"WORLD_SIZE": "7", "RANK": "5"}
    return job_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NODE_RANK=str(node), **others)


def test_two_nodes_end_with_one_message_about_a_mistake(tiny: Tiny, tmp_path: Path, two_ports: int) -> None:
    """A mistake gives one message, exit status 2, and no traceback of torchrun."""
    (tmp_path / "tokens.bin").write_bytes(b"")
    command = script(tiny, tmp_path, f"data.path={tmp_path / 'tokens'}")
    with scripts(*((command, variables(two_ports, node)) for node in (0, 1))) as nodes:
        said = [node.communicate(timeout=TIME_LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2], said
    for _, err in said:
        assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
        assert "Traceback" not in err


def test_signals_stop_both_nodes_of_a_static_rendezvous(tiny: Tiny, tmp_path: Path, two_ports: int) -> None:
    """SIGTERM, and SIGHUP of a terminal that is closed. By c10d, two hosts train in `test_two_hosts.py`."""
    command = script(tiny, tmp_path, "--rendezvous", "static", *LONG)
    folder = tmp_path / "gqa_1.5B_smoke"
    with scripts(*((command, variables(two_ports, node)) for node in (0, 1))) as nodes:
        until(lambda: len(losses(folder)) >= 3 or any(node.poll() is not None for node in nodes), "3 steps")
        for node, number in zip(nodes, (signal.SIGTERM, signal.SIGHUP), strict=True):
            node.send_signal(number)
        said = [node.communicate(timeout=TIME_LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [143, 143], said
    assert record(folder)["status"] == "stopped"
    assert not any("Traceback" in err for _, err in said)


@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_a_node_that_never_arrives_is_reported(tiny: Tiny, tmp_path: Path, two_ports: int, rendezvous: str) -> None:
    command = script(tiny, tmp_path, "--rendezvous", rendezvous, "--rendezvous-timeout", "3")
    with scripts((command, variables(two_ports, 0))) as (node,):
        _, err = node.communicate(timeout=TIME_LIMIT_S)
    assert node.returncode == 1
    assert f"error: torchrun did not bring all nodes together at 127.0.0.1:{two_ports}" in err.splitlines()[-1]
