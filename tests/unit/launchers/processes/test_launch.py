"""The supervision of real processes: who failed, who is ended, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command_line import is_alive, until
from support.repository import ROOT

from efficientbench.basics.errors import LaunchError
from efficientbench.config.schema import FaultsConfig
from efficientbench.launchers.processes.launch import launch


def worker(folder: Path, body: str) -> list[str]:
    """Return the command of a worker that knows `rank` and notes on disk that it is ready, and how it ended."""
    script = folder / "worker.py"
    script.write_text(
        "import os, pathlib, signal, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "def ready():\n"
        "    (folder / f'ready_{rank}').write_text(str(os.getpid()))\n"
        "def note(text):\n"
        "    with (folder / f'notes_{rank}').open('a') as notes:\n"
        "        notes.write(text)\n" + textwrap.dedent(body)
    )
    return [sys.executable, str(script)]


class Launcher:
    """A launcher in a process and session of its own, as a terminal would start it."""

    def __init__(
        self, folder: Path, body: str, ranks: int, stop_grace_s: float, hangup: signal.Handlers = signal.SIG_DFL
    ) -> None:
        """`hangup`: what SIGHUP means to it; SIG_IGN as under nohup."""
        self._folder = folder
        self._ranks = ranks
        program = (
            # A shell's background jobs ignore Ctrl-C, and so would what they start.
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from pathlib import Path; from efficientbench.launchers.processes.launch import launch; "
            "from efficientbench.config.schema import FaultsConfig; "
            f"sys.exit(launch({worker(folder, body)!r}, {ranks}, None, Path({str(folder)!r}), "
            f"FaultsConfig(stop_grace_s={stop_grace_s})))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
        )

    def worker_pids(self) -> list[int]:
        """Waits until every rank is ready."""
        files = [self._folder / f"ready_{rank}" for rank in range(self._ranks)]
        until(lambda: all(file.exists() and file.read_text() for file in files), "every rank is ready")
        return [int(file.read_text()) for file in files]

    def interrupt_from_terminal(self) -> None:
        """Ctrl-C: the terminal signals every process of the foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def terminate(self) -> None:
        self.process.terminate()

    def hang_up(self) -> None:
        """The terminal is closed, which signals every process of the foreground group."""
        os.killpg(self.process.pid, signal.SIGHUP)

    def finish(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=120)
        return self.process.returncode, stderr


STOPPABLE = """
def stop(number, frame):
    note(signal.Signals(number).name + ' ')
    time.sleep(0.3)
    note('saved')
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
ready()
time.sleep(600)
"""


def test_every_rank_gets_its_rank_and_world_size(tmp_path: Path) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "MASTER_ADDR")
    body = f"import json\nnote(json.dumps([os.environ[name] for name in {names!r}]))"
    assert launch(worker(tmp_path, body), 2, None, tmp_path / "log", FaultsConfig()) == 0
    places = [json.loads((tmp_path / f"notes_{rank}").read_text()) for rank in range(2)]
    assert places == [[str(rank), "2", str(rank), "2", "0", "1", "127.0.0.1"] for rank in range(2)]


def test_rank_0_writes_to_the_terminal_and_other_ranks_to_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = "print(f'out {rank}')\nprint(f'err {rank}', file=sys.stderr)"
    assert launch(worker(tmp_path, body), 2, None, tmp_path / "log", FaultsConfig()) == 0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out 0\n", "err 0\n")
    assert sorted((tmp_path / "log" / "rank_1.out").read_text().split("\n")) == ["", "err 1", "out 1"]


def test_a_rank_that_dies_ends_all_and_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    if rank == 1:
        print('Traceback and so on')
        note(str(time.time()))
        sys.exit('ValueError: the third layer is crooked')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    time.sleep(600)
    """
    assert launch(worker(tmp_path, body), 3, None, tmp_path / "log", FaultsConfig()) == 1
    assert time.time() - float((tmp_path / "notes_1").read_text()) < 4
    message = capfd.readouterr().err
    assert message.count("error:") == 1
    assert "error: rank 1: ended with exit status 1" in message
    assert message.rstrip().endswith("ValueError: the third layer is crooked")


def test_ranks_that_hang_are_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("efficientbench.launchers.processes.supervision.FAILURE_GRACE_S", 0.5)
    body = """
    if rank == 0:
        while not (folder / 'ready_1').exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGSEGV)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    time.sleep(600)
    """
    assert launch(worker(tmp_path, body), 2, None, tmp_path / "log", FaultsConfig()) == 1
    assert "error: rank 0: ended by SIGSEGV" in capfd.readouterr().err
    assert not is_alive(int((tmp_path / "ready_1").read_text()))


def test_the_failed_rank_is_named_before_ranks_that_lost_connection(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Rank 1 reports first and is slow to end; rank 0 notices, reports and ends at once.
    body = """
    from efficientbench.launchers.processes.failure import Failure, report_failure
    if rank == 1:
        report_failure(Failure('crash', 'the data file is cut off'))
        (folder / 'reported').touch()
        time.sleep(1); sys.exit(1)
    while not (folder / 'reported').exists():
        time.sleep(0.01)
    report_failure(Failure('crash', 'connection closed by peer'))
    os._exit(1)
    """
    assert launch([*worker(tmp_path, body)], 2, None, tmp_path / "log", FaultsConfig()) == 1
    message = capfd.readouterr().err
    assert "error: rank 1: the data file is cut off" in message
    assert "peer" not in message


def test_a_users_mistake_is_reported_once_with_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    from efficientbench.launchers.processes.failure import Failure, report_failure
    report_failure(Failure('mistake', 'data.idx is corrupt', 2))
    sys.exit(2)
    """
    assert launch(worker(tmp_path, body), 2, None, tmp_path / "log", FaultsConfig()) == 2
    assert capfd.readouterr().err == "error: data.idx is corrupt\n"


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ([Launcher.interrupt_from_terminal], 130),
        pytest.param([Launcher.terminate], 143, marks=pytest.mark.proof),
        # Schedulers send SIGTERM to a job's script and to its processes, and the script passes it on.
        ([Launcher.terminate, Launcher.terminate], 143),
        # Of a terminal that is closed, the kernel and the shell send SIGHUP.
        ([Launcher.hang_up, Launcher.hang_up], 129),
    ],
)
def test_a_stop_signal_is_forwarded_once_and_ranks_may_save(
    signals: list[Callable[[Launcher], None]], expected: int, tmp_path: Path
) -> None:
    launcher = Launcher(tmp_path, STOPPABLE, ranks=2, stop_grace_s=10)
    launcher.worker_pids()
    for send in signals:
        send(launcher)
        until((tmp_path / "notes_0").exists, "rank 0 has the first signal")
    code, message = launcher.finish()
    assert (code, "error" in message, "killed" in message) == (expected, False, False)
    assert [(tmp_path / f"notes_{rank}").read_text() for rank in range(2)] == ["SIGTERM saved"] * 2


def test_ranks_save_after_the_reader_of_their_output_has_ended(tmp_path: Path) -> None:
    """The program behind a pipe, such as `tee`, ends with the terminal."""
    launcher = Launcher(tmp_path, STOPPABLE, ranks=1, stop_grace_s=10)
    launcher.worker_pids()
    assert launcher.process.stderr is not None
    launcher.process.stderr.close()
    launcher.hang_up()
    assert launcher.process.wait(120) == 129
    assert (tmp_path / "notes_0").read_text() == "SIGTERM saved"


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    body = "ready()\nwhile not (folder / 'go_on').exists():\n    time.sleep(0.02)"
    launcher = Launcher(tmp_path, body, ranks=1, stop_grace_s=10, hangup=signal.SIG_IGN)
    launcher.worker_pids()
    launcher.hang_up()
    (tmp_path / "go_on").touch()
    assert launcher.finish() == (0, "")


IGNORES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
ready()
time.sleep(600)
"""


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, IGNORES, ranks=2, stop_grace_s=0.5)
    pids = launcher.worker_pids()
    launcher.process.terminate()
    code, message = launcher.finish()
    assert code == 143
    assert "killed before they had ended: ranks 0, 1" in message
    assert not any(map(is_alive, pids))


def test_a_second_ctrl_c_kills_all_ranks_at_once(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, IGNORES, ranks=1, stop_grace_s=60)
    (pid,) = launcher.worker_pids()
    launcher.interrupt_from_terminal()
    time.sleep(0.3)
    assert is_alive(pid)
    launcher.interrupt_from_terminal()
    assert launcher.finish()[0] == 130
    assert not is_alive(pid)


def test_no_rank_outlives_a_killed_launcher(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, IGNORES, ranks=2, stop_grace_s=60)
    pids = launcher.worker_pids()
    launcher.process.kill()
    launcher.finish()
    until(lambda: not any(map(is_alive, pids)), "the end of all ranks")


def test_child_processes_of_a_rank_end_with_it(tmp_path: Path) -> None:
    body = "import subprocess\nnote(str(subprocess.Popen(['sleep', '600']).pid))"
    assert launch(worker(tmp_path, body), 1, None, tmp_path / "log", FaultsConfig()) == 0
    helper = int((tmp_path / "notes_0").read_text())
    until(lambda: not is_alive(helper), "the helper's end")


def test_signal_handlers_are_restored(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    launch(worker(tmp_path, "pass"), 1, None, tmp_path / "log", FaultsConfig())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_command_that_cannot_start_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="rank 0 cannot be started: .*no-such-program"):
        launch([str(tmp_path / "no-such-program")], 1, None, tmp_path / "log", FaultsConfig())
    with pytest.raises(LaunchError, match="at least 1"):
        launch([sys.executable], 0, None, tmp_path / "log", FaultsConfig())


def test_concurrent_launches_get_distinct_ports(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(4)]
    body = """
    note(os.environ['MASTER_PORT'])
    ready()
    while len(list(folder.parent.glob('*/ready_0'))) < 4:
        time.sleep(0.02)
    """
    launchers = []
    for folder in folders:
        folder.mkdir()
        launchers.append(Launcher(folder, body, ranks=1, stop_grace_s=1))
    with ThreadPoolExecutor() as pool:
        assert [code for code, _ in pool.map(Launcher.finish, launchers)] == [0] * 4
    assert len({(folder / "notes_0").read_text() for folder in folders}) == 4


@pytest.mark.proof
def test_ranks_of_one_machine_listen_only_on_its_loopback(tmp_path: Path) -> None:
    body = """
    import psutil, torch
    from efficientbench.metrics.monitoring.exchange import gather
    from efficientbench.training import groups
    with groups.world("gloo"):
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        assert gather(pathlib.Path(f"/{rank}"), pathlib.Path) == [pathlib.Path("/0"), pathlib.Path("/1")]
        listening = {each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"}
        note(" ".join(sorted(listening)))
        torch.distributed.barrier()
    """
    assert launch(worker(tmp_path, body), 2, None, tmp_path, FaultsConfig()) == 0
    assert [(tmp_path / f"notes_{rank}").read_text() for rank in range(2)] == ["127.0.0.1", "127.0.0.1"]
