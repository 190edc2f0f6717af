"""Downloads from a hub that breaks connections, lies, refuses, is silent, and serves wrong files."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest
import requests
from huggingface_hub import constants
from replicas.hub_server import Fault, HubState, git_blob_sha1
from support.downloads import SAMPLE, download, partials, text_parquet
from support.proofs import proofs_but

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.download import hub_requests
from efficientbench.data_tools.download.hub_requests import retry_after_s


def test_a_huggingface_hub_older_than_httpx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "get_session", requests.Session)
    named = r"^downloads need huggingface_hub 1\.0 or newer, and [\d.]+ is installed"
    with pytest.raises(DataError, match=named), hub_requests.hub_errors_explained("owner/name", "main"):
        pass


def test_a_broken_download_resumes_at_its_byte(hub: HubState, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(break_after=1000), Fault(break_after=700), None]
    file = download(tmp_path)[0]
    assert file.read_bytes() == hub.files[SAMPLE[0]]
    asked = hub.asked("storage")
    assert [headers.get("range") for headers in asked] == [None, "bytes=1000-", "bytes=1700-"]
    assert asked[1]["if-range"].startswith('"')


def test_another_process_resumes_a_download_at_its_byte(hub: HubState, tmp_path: Path) -> None:
    hub.always["storage"] = Fault(status=503)
    hub.faults["storage"] = [Fault(break_after=1000)]
    with pytest.raises(DataError, match=r"the server answers 503 \(4 attempts in a row\)"):
        download(tmp_path)
    assert [path.stat().st_size for path in partials(tmp_path)] == [1000]
    assert not (tmp_path / SAMPLE[0]).exists()
    hub.always.clear()
    hub.requests.clear()
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert [headers["range"] for headers in hub.asked("storage")] == ["bytes=1000-"]
    assert not partials(tmp_path)


@pytest.mark.parametrize(
    ("kind", "fault", "message"),
    [
        ("storage", Fault(break_after=1000, whole=True), "4 attempts in a row"),
        (
            "storage",
            Fault(status=429, headers={"RateLimit": '"resolvers";r=0;t=86400'}),
            "answers 429, and asks to wait 86,400 s",
        ),
        ("storage", Fault(content=b"cut short"), "the server offers"),
        ("resolve", Fault(etag="0" * 64), "changed on the hub since it was listed"),
    ],
)
def test_a_server_that_keeps_failing_is_reported(
    hub: HubState, tmp_path: Path, kind: str, fault: Fault, message: str
) -> None:
    hub.always[kind] = fault
    with pytest.raises(DataError, match=message):
        download(tmp_path)
    assert len(hub.asked("storage")) <= 4
    assert not (tmp_path / SAMPLE[0]).exists()


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_retried(hub: HubState, tmp_path: Path, status: int) -> None:
    hub.faults = {kind: [Fault(status=status)] for kind in ("info", "tree", "resolve", "storage")}
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert [len(hub.asked(kind)) for kind in ("info", "tree", "resolve", "storage")] == [2, 4, 3, 2]


@pytest.mark.parametrize("kind", [pytest.param("tree", marks=pytest.mark.proof), "storage"])
def test_a_busy_server_is_retried_after_the_wait_it_asks_for(hub: HubState, tmp_path: Path, kind: str) -> None:
    hub.faults[kind] = [Fault(status=429, headers={"Retry-After": "1"})]
    begin_s = time.monotonic()
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert time.monotonic() - begin_s >= 1


def test_the_wait_is_read_from_every_retry_header() -> None:
    by_value = {"7": 7, "soon": None, '"api";r=0;t=55': 55, '"api";r=3;t=55': None, "": None}
    for value, wait_s in by_value.items():
        assert retry_after_s({"RateLimit" if "api" in value else "Retry-After": value}) == wait_s
    assert retry_after_s({"Retry-After": formatdate(time.time() + 60, usegmt=True)}) == pytest.approx(60, abs=5)


@pytest.mark.parametrize("length", [10, 1_000_000])
@pytest.mark.parametrize("kind", ["resolve", "storage"])
def test_a_wrong_content_length_is_detected(hub: HubState, tmp_path: Path, kind: str, length: int) -> None:
    hub.faults[kind] = [Fault(length=length)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    hub.always[kind] = Fault(length=length)
    with pytest.raises(DataError, match=rf"{length:,} bytes.*\(4 attempts in a row\)"):
        download(tmp_path, 2)
    assert not (tmp_path / SAMPLE[1]).exists()


def test_wrong_content_of_the_right_length_is_fetched_once_more(hub: HubState, tmp_path: Path) -> None:
    wrong = b"?" * len(hub.files[SAMPLE[0]])
    hub.faults["storage"] = [Fault(content=wrong)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    hub.always["storage"] = Fault(content=b"?" * len(hub.files[SAMPLE[1]]))
    with pytest.raises(DataError, match=r"checksum.*2 times in a row; nothing of it was kept"):
        download(tmp_path, 2)
    assert not (tmp_path / SAMPLE[1]).exists()
    assert not partials(tmp_path)


def test_wrong_content_of_a_small_file_is_detected(hub: HubState, tmp_path: Path) -> None:
    hub.card["configs"] = [{"config_name": "notes", "data_files": "notes/*"}]
    content = hub.files["notes/words.jsonl"]
    hub.always["resolve"] = Fault(content=b"?" * len(content), etag=git_blob_sha1(content))
    with pytest.raises(DataError, match="checksum"):
        download(tmp_path, config="notes")


def test_a_file_that_is_no_parquet_is_not_stored_despite_a_right_checksum(hub: HubState, tmp_path: Path) -> None:
    hub.files[SAMPLE[0]] = hub.files[SAMPLE[0]][:-1] + b"?"
    with pytest.raises(DataError, match="is no parquet file, though it is what the hub has"):
        download(tmp_path)
    assert not (tmp_path / SAMPLE[0]).exists()


def test_a_download_restarts_on_a_server_without_ranges(hub: HubState, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(break_after=1000), Fault(whole=True)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]


@pytest.mark.parametrize("heeds_if_range", [True, False])
def test_a_file_that_changes_during_a_download_is_not_stitched(
    hub: HubState, tmp_path: Path, heeds_if_range: bool, caplog: pytest.LogCaptureFixture
) -> None:
    other = b"?" * 900 + hub.files[SAMPLE[0]][900:]
    # A server that heeds it sends its whole new content, another one a range of that.
    second = None if heeds_if_range else Fault(unconditional=True)
    hub.faults["storage"] = [Fault(break_after=1000, content=other, etag="other"), second]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert len(hub.asked("storage")) == (2 if heeds_if_range else 3)
    assert hub.asked("storage")[1]["range"] == "bytes=1000-"
    assert ("changed where it is stored" in caplog.text) == (not heeds_if_range)
    assert "checksum" not in caplog.text


def test_partial_bytes_of_an_older_version_are_dropped(hub: HubState, tmp_path: Path) -> None:
    hub.always["storage"] = Fault(break_after=1000, whole=True)
    with pytest.raises(DataError):
        download(tmp_path)
    old = partials(tmp_path)
    hub.always.clear()
    hub.requests.clear()
    hub.files[SAMPLE[0]] = text_parquet("a new version")
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert "range" not in hub.asked("storage")[0]
    assert len(old) == 1
    assert not partials(tmp_path)


def test_a_full_disk_is_reported_and_the_download_resumes_later(
    hub: HubState, small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk(64)
    filler = disk / "filler"
    filler.write_bytes(b"?" * 40_000)
    with monkeypatch.context() as before:  # the space was free when the download began
        before.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10**9}))
        with pytest.raises(DataError, match=rf"no space left in {disk} \(.* free some"):
            download(disk, 2, max_workers=1)
    assert not (disk / SAMPLE[1]).exists()
    filler.unlink()
    files = download(disk, 2)
    assert [file.read_bytes() for file in files] == [hub.files[path] for path in SAMPLE[:2]]
    assert not partials(disk)


@pytest.mark.proof
def test_a_transfer_from_a_silent_server_times_out_and_resumes_at_its_byte(
    hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for every other answer on a busy machine.
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 3)
    hub.faults["storage"] = [Fault(pause_s=60)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert hub.asked("storage")[1]["range"] == f"bytes={len(hub.files[SAMPLE[0]]) // 2}-"


ROW = {"type": "file", "path": SAMPLE[0], "size": 9, "oid": "0" * 40}


@pytest.mark.parametrize(
    "row",
    [
        7,
        None,
        "file",
        [],
        {},
        {**ROW, "path": 7},
        {**ROW, "path": ""},
        {**ROW, "path": "/etc/passwd"},
        {**ROW, "path": "sample/../../x.parquet"},
        {**ROW, "size": "9"},
        {**ROW, "size": -9},
        {**ROW, "size": None},
        {**ROW, "oid": "../../x"},
        {**ROW, "oid": None},
        {**ROW, "lfs": "large"},
        {**ROW, "lfs": {"oid": 7, "size": 9, "pointerSize": 1}},
        {**ROW, "lfs": {"oid": "0" * 64, "size": 1e30, "pointerSize": 1}},
    ],
)
def test_a_listing_of_wrong_types_is_refused(hub: HubState, tmp_path: Path, row: object) -> None:
    hub.faults["tree"] = [Fault(rows=[row])]
    with pytest.raises(DataError, match="unlike the hub's|outside of its folder"):
        download(tmp_path)
    assert not any(path.is_file() and path.suffix == ".parquet" for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("content", [b"7", b"null", b"[]", b"{}", b'{"sha": "../.."}', b"[" * 100_000, b"\xff"])
def test_a_description_of_wrong_types_is_refused(hub: HubState, tmp_path: Path, content: bytes) -> None:
    hub.faults["info"] = [Fault(content=content)]
    with pytest.raises(DataError, match="unlike the hub's"):
        download(tmp_path)


@pytest.mark.parametrize(
    "configs",
    [
        7,
        "x",
        [7],
        [{"config_name": ["a"]}],
        [{"config_name": "mine", "data_files": 7}],
        [{"config_name": "mine", "data_files": {}}],
        [{"config_name": "mine", "data_files": [[[["a", 7]]]]}],
    ],
)
def test_a_card_of_wrong_types_is_refused(hub: HubState, tmp_path: Path, configs: object) -> None:
    hub.card = {"configs": configs}
    with pytest.raises(DataError, match="not understood|no configuration"):
        download(tmp_path, config="mine")


def test_endless_pages_of_a_listing_are_abandoned(
    hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_requests, "MOST_PAGES", 20)
    hub.always["tree"] = Fault(rows=[])
    with pytest.raises(DataError, match="on more than 20 pages"):
        download(tmp_path)
    assert len(hub.asked("tree")) == 20


def test_an_endless_listing_is_abandoned(hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "LONGEST_LIST_BYTES", 50)
    with pytest.raises(DataError, match="in more than 50 bytes"):
        download(tmp_path)


@pytest.mark.parametrize("kind", proofs_but(["storage"], ["info", "tree", "storage"]))
def test_a_trickling_server_is_abandoned(
    hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(hub_requests, "RATE_WINDOW_S", 0.2)
    hub.always[kind] = Fault(drip_s=0.02)
    with pytest.raises(DataError, match=r"bytes a second \(4 attempts in a row\)"):
        download(tmp_path)


def test_an_error_without_a_network_says_how_to_work_offline(
    hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError) as error:
        download(tmp_path)
    assert str(error.value).startswith("dataset HuggingFaceFW/fineweb-edu: 127.0.0.1 cannot be reached: ")
    for hint in (
        "(4 attempts in a row): is there a network here?",
        "=https://hf-mirror.com",
        "modelscope:",
        "tokenize FILES",
    ):
        assert hint in str(error.value)
