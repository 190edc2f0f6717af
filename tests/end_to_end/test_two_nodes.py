"""Several nodes: two command lines on one machine, as a cluster's scheduler would start them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import TIME_LIMIT_S, efficientbench, free_port, losses, record, started

Tiny = tuple[str, ...]


@pytest.mark.proof
def test_two_nodes_make_one_record(tiny: Tiny, tmp_path: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with started(*tiny, "dlc", **place, RANK="1") as second:
        first = efficientbench(*tiny, "dlc", **place, RANK="0")
        stdout, stderr = second.communicate(timeout=TIME_LIMIT_S)
    assert (first.returncode, second.returncode, first.stderr + stderr) == (0, 0, "")
    folder = tmp_path / "gqa_1.5B_smoke"
    content = record(folder)
    # The host that both "nodes" share is one device.
    assert (content["dp"], content["devices"], content["status"]) == (2, 1, "completed")
    assert [each["rank"] for each in content["rank_uses"]] == [0, 1]
    assert len(losses(folder)) == 6
    assert [path.parent for path in tmp_path.rglob("record.json")] == [folder]
    assert {path.name for path in (folder / "log").iterdir()} >= {"rank_0.log", "rank_1.log"}
    assert ("gqa_1.5B (smoke)" in first.stdout, "record  " in stdout) == (True, False)


@pytest.mark.proof
def test_no_node_writes_before_the_first_has_prepared_the_folder(tiny: Tiny, tmp_path: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with started(*tiny, "dlc", **place, RANK="1") as second:
        (tmp_path / "empty.jsonl").touch()  # found out only where the text is prepared, when the nodes have met
        first = efficientbench(*tiny, f"data.path={tmp_path / 'empty.jsonl'}", "dlc", **place, RANK="0")
        _, told = second.communicate(timeout=TIME_LIMIT_S)
    assert (first.returncode, second.returncode) == (2, 2), first.stderr + told
    assert re.match("error: node 0 ended before any rank was started: .*empty.jsonl", told, re.DOTALL)
    # What it had written there would be set aside with an earlier run's files.
    assert not (tmp_path / "gqa_1.5B_smoke" / "log").exists()
