"""`python -m data_tools download` as a user starts it, interrupted, killed, and twice at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from replicas.hub_server import Fault, HubState, hub_server
from support.command_line import until
from support.data_tools_command import finish, start
from support.downloads import SAMPLE, skip_where_downloads_are_refused, text_parquet

FILES = SAMPLE[:4]
PAUSED = Fault(pause_s=600)
"""Sends half of a file, and nothing more while the test runs."""


@pytest.fixture
def hub() -> Iterator[HubState]:
    skip_where_downloads_are_refused()
    with hub_server({path: text_parquet(*"some texts and more") for path in FILES}) as state:
        yield state


@pytest.mark.parametrize(
    "end", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.proof) for each in (signal.SIGKILL, signal.SIGTERM))]
)
def test_an_interrupted_download_leaves_partial_files_that_the_next_call_resumes(
    hub: HubState, tmp_path: Path, end: signal.Signals
) -> None:
    # With three transfers at once, all three can only pause after the fourth has finished.
    hub.faults["storage"] = [None, PAUSED, PAUSED, PAUSED]
    process = start(hub.endpoint, "download", "--output", str(tmp_path))
    half_bytes = {len(content) // 2 for content in hub.files.values()}
    until(
        lambda: process.poll() is not None or [size in half_bytes for size in partial_sizes(tmp_path)] == [True] * 3,
        "half of three files",
    )
    process.send_signal(end)
    code, out, error = finish(process)
    assert code == {signal.SIGINT: 130}.get(end, -end), error
    assert out == ""
    if end == signal.SIGINT:
        assert error.splitlines()[-1] == "interrupted: the same command continues from here"
    kept = partial_sizes(tmp_path)
    assert len([path for path in FILES if (tmp_path / path).exists()]) == 1
    hub.requests.clear()
    code, out, error = finish(start(hub.endpoint, "download", "--output", str(tmp_path)))
    assert code == 0, error
    assert out == f"4 files of HuggingFaceFW/fineweb-edu, 0.00 GB, in {tmp_path}\n"
    assert [(tmp_path / path).read_bytes() for path in FILES] == [hub.files[path] for path in FILES]
    assert not [*tmp_path.rglob("*.partial")]
    ranges = [headers["range"] for headers in hub.asked("storage")]
    assert sorted(ranges) == sorted(f"bytes={size}-" for size in kept)


def partial_sizes(folder: Path) -> list[int]:
    """The sizes of the files that have begun; none of one that is renamed meanwhile."""
    sizes = []
    for path in folder.rglob("*.partial"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def test_two_concurrent_processes_fetch_each_file_once(hub: HubState, tmp_path: Path) -> None:
    processes = [start(hub.endpoint, "download", "--output", str(tmp_path), "--num-files", "3") for _ in range(2)]
    for code, out, error in map(finish, processes):
        assert (code, out) == (0, f"3 files of HuggingFaceFW/fineweb-edu, 0.00 GB, in {tmp_path}\n"), error
    assert len(hub.asked("storage")) == 3


def test_no_secret_is_printed(hub: HubState, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(break_after=1000), Fault(status=503)]
    hub.token = "hf_sesame"
    words = ["download", "--output", str(tmp_path), "--num-files", "2"]
    code, out, error = finish(start(hub.endpoint, *words, token="hf_sesame"))
    assert code == 0, error
    assert "the server answers 503; next attempt" in error
    assert "2 of 2 files: sample/10BT/" in error
    hub.faults["info"] = [Fault(status=403)]  # with a message that repeats what it was sent
    refused = finish(start(hub.endpoint, *words, "--revision", "main", token="hf_sesame"))
    assert refused[0] == 2
    assert "the server answers 403" in refused[2]
    assert refused[2].splitlines()[-1].startswith("error: dataset 'HuggingFaceFW/fineweb-edu' at 127.0.0.1: ")
    assert "sesame" not in out + error + refused[1] + refused[2]
    assert "sesame" not in (tmp_path / ".download" / "record").read_text()


def test_a_mistake_in_download_options_is_reported_in_one_line(hub: HubState, tmp_path: Path) -> None:
    done = finish(start(hub.endpoint, "download", "owner/nothing", "--output", str(tmp_path)))
    assert done == (
        2,
        "",
        "error: dataset 'owner/nothing' at 127.0.0.1: no such dataset, or it wants a token (HF_TOKEN)\n",
    )
