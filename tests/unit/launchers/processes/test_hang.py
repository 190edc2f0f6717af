"""Which rank is named when ranks make no progress, and how often the kernel has killed a process for its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import until

from efficientbench.launchers.processes.failure import REPORT_VARIABLE
from efficientbench.launchers.processes.hang import START_S, Beats, ProgressWatch, describe_hang
from efficientbench.launchers.processes.heartbeat import STARTING, Beat, HeartbeatWriter, heartbeat_file, read_beat
from efficientbench.launchers.processes.worker_process import memory_kills


def beat(step: int = 4, waits: bool = True, age_s: float = 0.2, process: str = "", **counts: int) -> Beat:
    return Beat(step, "training", dict(counts), "trainer line 7", waits, 0.0, age_s, process)


@pytest.mark.parametrize(
    ("beats", "rank", "named"),
    [
        # Silence says most, whatever the collectives say.
        ({0: beat(world=9), 1: beat(age_s=7.0, process="stopped", world=9)}, 1, "silent for 7 s, stopped"),
        ({0: beat(), 1: None}, 1, "gave no sign of life"),
        # One that lives, and has not begun the collective in which the other waits.
        ({0: beat(world=9), 1: beat(world=8)}, 1, "rank 1 did not arrive (in step 4, training at trainer line 7)"),
        # Two groups of tensor parallelism, 0 with 1 and 2 with 3, and two of data parallelism: 3 is missing, 2 waits
        # for it, and 0 and 1 wait for 2 and 3.
        ({0: beat(t0=5, d0=2), 1: beat(t0=5, d1=2), 2: beat(t1=5, d0=1), 3: beat(t1=4, d1=1)}, 3, "rank 3 did not"),
        # Point to point nothing is counted: one of them is not inside a collective.
        ({0: beat(world=9), 1: beat(world=9, waits=False)}, 1, "rank 1 did not arrive"),
        ({0: beat(5, world=9), 1: beat(4, world=9)}, 1, "rank 1 did not arrive"),
        ({0: beat(world=9), 1: beat(world=9)}, None, "all wait for each other (rank 0: in step 4"),
    ],
)
def test_the_rank_that_did_not_reach_the_collective_is_named(beats: Beats, rank: int | None, named: str) -> None:
    found, reason = describe_hang(beats, {}, 60)
    assert found == rank
    assert reason.startswith("hung: no rank made progress for 60 s")
    assert named in reason


@pytest.mark.parametrize("alone", [beat(), beat(age_s=7.0, process="stopped")])
def test_a_lone_hung_rank_is_named(alone: Beat) -> None:
    found, reason = describe_hang({0: alone}, {}, 60)
    assert found == 0
    assert reason.startswith("hung: made no progress for 60 s (in step 4, training at trainer line 7")


def test_a_rank_that_has_ended_is_missing() -> None:
    assert describe_hang({0: beat(world=9)}, {1: "has ended"}, 60) == (
        1,
        "hung: no rank made progress for 60 s; rank 1 did not arrive (has ended)",
    )


def test_a_new_phase_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"

    def phase() -> str | None:
        found = read_beat(heartbeat_file(report), "")
        return found and found.phase

    monkeypatch.setenv(REPORT_VARIABLE, str(report))
    monkeypatch.setattr("efficientbench.launchers.processes.heartbeat.INTERVAL_S", 600.0)
    writer = HeartbeatWriter()
    writer.start()
    until(lambda: phase() == STARTING, "the first heartbeat", 30)
    writer.at(1, "training")
    until(lambda: phase() == "training", "the next", 30)


def test_progress_of_any_rank_counts_and_loading_libraries_may_take_long() -> None:
    watch = ProgressWatch(limit_s=-1.0)
    # Whatever is seen for the first time is progress; with no patience left it is stuck at the second look.
    assert watch.left_s({0: beat(world=1)}) <= 0
    assert 0 < ProgressWatch(-1.0).left_s({0: beat(), 1: Beat(phase=STARTING)}) <= START_S
    watch = ProgressWatch(limit_s=60)
    assert 0 < watch.left_s({0: beat(world=1)}) <= 60


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({"sys/fs/cgroup/a/b/memory.events": "low 0\noom 3\noom_kill 2\n"}, 2),
        ({"sys/fs/cgroup/memory.events": "oom_kill 5\n"}, 5),
        ({"sys/fs/cgroup/memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 1),
        ({}, None),
    ],
)
def test_oom_kills_are_counted_with_either_cgroup_version(
    tmp_path: Path, files: dict[str, str], kills: int | None
) -> None:
    own = "4:memory:/x\n0::/\n" if any("memory/x" in name for name in files) else "0::/a/b\n"
    for name, text in {"proc/self/cgroup": own, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_kills(tmp_path) == kills
