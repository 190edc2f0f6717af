"""Downloads from a hub on this machine that breaks connections, lies, refuses, and serves wrong files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants
from support.hub_server import COMMIT, REPOSITORY, Fault, HubState, git_blob_sha1, hub_server

from data_tools.download import DownloadRequest, download_dataset
from data_tools.download.requests import Patience, retry_after_s
from data_tools.errors import DataError

PATIENCE = Patience(attempts=4, first_wait_s=0.01)
SAMPLE = [f"sample/10BT/00{number}_00000.parquet" for number in range(5)]


def parquet(*texts: str) -> bytes:
    """A parquet file with a column `text`, not compressible below a few kilobytes."""
    buffer = io.BytesIO()
    noise = [os.urandom(2000).hex() for _ in texts]
    pyarrow.parquet.write_table(pyarrow.table({"text": list(texts), "id": noise}), buffer, compression="none")
    return buffer.getvalue()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubState]:
    """A hub with five parquet files and some others; this process asks it."""
    files = {path: parquet(f"document of {path}", "another") for path in SAMPLE}
    files |= {
        "README.md": b"# about",
        "sample/10BT_old/000.parquet": b"no",
        "notes/words.jsonl": b'{"text": "a"}\n' * 9,
    }
    with hub_server(files) as state:
        monkeypatch.setattr(constants, "ENDPOINT", state.endpoint)
        template = state.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "")
        yield state


def download(folder: Path, num_files: int = 1, **more: str | int | None) -> list[Path]:
    words = {"repository": REPOSITORY, "folder": folder, "num_files": num_files, **more}
    return download_dataset(DownloadRequest(**words), PATIENCE)  # type: ignore[arg-type]


def partials(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.partial"))


def test_the_default_is_the_small_sample_at_its_revision(hub: HubState, tmp_path: Path) -> None:
    files = download(tmp_path / "data", 200)
    assert files == [tmp_path / "data" / path for path in SAMPLE]
    assert [file.read_bytes() for file in files] == [hub.files[path] for path in SAMPLE]
    assert not partials(tmp_path)
    info, *trees = [path for kind, path, _ in hub.requests if kind in ("info", "tree")]
    assert info.endswith("/revision/v1.2.0")
    assert len(trees) == 3  # of two files each
    assert all(path.endswith(f"/tree/{COMMIT}/sample/10BT") for path in trees)
    assert len(hub.asked("storage")) == 5


def test_the_first_files_by_path_are_taken(hub: HubState, tmp_path: Path) -> None:
    assert download(tmp_path, 2) == [tmp_path / path for path in SAMPLE[:2]]
    assert not (tmp_path / SAMPLE[2]).exists()


def test_a_second_call_downloads_nothing(hub: HubState, tmp_path: Path) -> None:
    download(tmp_path, 3)
    hub.requests.clear()
    assert len(download(tmp_path, 3)) == 3
    assert not hub.asked("storage")
    assert not hub.asked("resolve")


def test_a_file_that_lies_there_without_record_is_checked_not_fetched(hub: HubState, tmp_path: Path) -> None:
    (tmp_path / "sample/10BT").mkdir(parents=True)
    (tmp_path / SAMPLE[0]).write_bytes(hub.files[SAMPLE[0]])
    (tmp_path / SAMPLE[1]).write_bytes(hub.files[SAMPLE[1]][:-1] + b"?")
    files = download(tmp_path, 2)
    assert [path for kind, path, _ in hub.requests if kind == "storage"] == [f"/storage/{SAMPLE[1]}"]
    assert files[1].read_bytes() == hub.files[SAMPLE[1]]


def test_a_file_that_changed_here_or_on_the_hub_is_fetched_again(hub: HubState, tmp_path: Path) -> None:
    download(tmp_path, 3)
    hub.requests.clear()
    content = hub.files[SAMPLE[0]]
    (tmp_path / SAMPLE[0]).write_bytes(b"?" + content[1:])
    hub.files[SAMPLE[1]] = hub.files[SAMPLE[1]].replace(b"another", b"changed")
    download(tmp_path, 3)
    assert len(hub.asked("storage")) == 2
    assert [(tmp_path / path).read_bytes() for path in SAMPLE[:2]] == [content, hub.files[SAMPLE[1]]]


@pytest.mark.parametrize(("path", "checksum"), [("notes/words.jsonl", "git"), ("notes/more.jsonl.zst", "sha256")])
def test_any_dataset_gives_its_files_of_documents(
    hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, checksum: str
) -> None:
    monkeypatch.setattr("support.hub_server.REPOSITORY", "owner/notes")
    hub.files.clear()
    hub.files |= {path: b'{"text": "words"}\n' * 50, "README.md": b"#", "info.json": b"{}"}
    assert download(tmp_path, 200, repository="owner/notes") == [tmp_path / path]
    assert [path for kind, path, _ in hub.requests if kind == "info"][0].endswith("owner/notes/revision/main")
    record = json.loads((tmp_path / ".download" / "record").read_text())
    assert len(record["finished"][path][0]) == {"git": 40, "sha256": 64}[checksum]


@pytest.mark.parametrize(
    "declared",
    [
        {"config_name": "notes", "data_files": "notes/*.jsonl"},
        {"config_name": "notes", "data_files": [{"split": "train", "path": ["notes/*.jsonl"]}]},
        {"config_name": "notes", "data_dir": "notes"},
    ],
)
def test_a_configuration_of_the_card_is_found(hub: HubState, tmp_path: Path, declared: dict[str, object]) -> None:
    hub.card["configs"] = [declared]
    assert download(tmp_path, config="notes") == [tmp_path / "notes/words.jsonl"]


def test_an_unknown_configuration_names_the_nearest(hub: HubState, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no configuration 'sample-10B'.*did you mean sample-10BT\?"):
        download(tmp_path, config="sample-10B")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"repository": "owner/nothing"}, "no such dataset, or it wants a token"),
        ({"repository": "what is this?"}, "cannot be the name of a dataset"),
        ({"revision": "v9"}, "has no revision 'v9'"),
        ({"config": "sample-350BT"}, "has no folder 'sample/350BT'"),
        ({"num_files": 0}, "is at least 1"),
    ],
)
def test_a_mistake_is_said(hub: HubState, tmp_path: Path, words: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        download(tmp_path, **words)  # type: ignore[arg-type]


def test_a_broken_connection_is_continued_at_its_byte(hub: HubState, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(break_after=1000), Fault(break_after=700), None]
    file = download(tmp_path)[0]
    assert file.read_bytes() == hub.files[SAMPLE[0]]
    asked = hub.asked("storage")
    assert [headers.get("range") for headers in asked] == [None, "bytes=1000-", "bytes=1700-"]
    assert asked[1]["if-range"].startswith('"')


def test_another_process_continues_at_the_byte(hub: HubState, tmp_path: Path) -> None:
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


def test_a_server_that_always_breaks_at_the_same_byte_comes_to_an_end(hub: HubState, tmp_path: Path) -> None:
    hub.always["storage"] = Fault(break_after=1000, whole=True)
    with pytest.raises(DataError, match="4 attempts in a row"):
        download(tmp_path)
    assert len(hub.asked("storage")) == 4


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(hub: HubState, tmp_path: Path, status: int) -> None:
    hub.faults = {kind: [Fault(status=status)] for kind in ("info", "tree", "resolve", "storage")}
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert [len(hub.asked(kind)) for kind in ("info", "tree", "resolve", "storage")] == [2, 4, 3, 2]


@pytest.mark.parametrize("kind", ["tree", "storage"])
def test_a_busy_server_is_asked_again_as_late_as_it_says(hub: HubState, tmp_path: Path, kind: str) -> None:
    hub.faults[kind] = [Fault(status=429, headers={"Retry-After": "1"})]
    begin_s = time.monotonic()
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert time.monotonic() - begin_s >= 1


def test_a_server_that_asks_for_too_long_a_wait_is_the_end(hub: HubState, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(status=429, headers={"RateLimit": '"resolvers";r=0;t=86400'})]
    with pytest.raises(DataError, match="answers 429, and asks to wait 86,400 s"):
        download(tmp_path)


def test_the_ways_to_ask_for_a_wait() -> None:
    assert retry_after_s({"Retry-After": "7"}) == 7
    assert retry_after_s({"Retry-After": formatdate(time.time() + 60, usegmt=True)}) == pytest.approx(60, abs=5)
    assert retry_after_s({"Retry-After": "soon"}) is None
    assert retry_after_s({"RateLimit": '"api";r=0;t=55'}) == 55
    assert retry_after_s({"RateLimit": '"api";r=3;t=55'}) is None
    assert retry_after_s({}) is None


def test_the_waits_grow_and_end() -> None:
    patience = Patience(first_wait_s=1, longest_wait_s=5)
    assert [patience.wait_s(failures, None) for failures in range(1, 6)] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize("length", [10, 1_000_000])
@pytest.mark.parametrize("kind", ["resolve", "storage"])
def test_a_length_that_is_a_lie_is_not_believed(hub: HubState, tmp_path: Path, kind: str, length: int) -> None:
    hub.faults[kind] = [Fault(length=length)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    hub.always[kind] = Fault(length=length)
    with pytest.raises(DataError, match=rf"{length:,} bytes.*\(4 attempts in a row\)"):
        download(tmp_path, 2)
    assert not (tmp_path / SAMPLE[1]).exists()


def test_a_truncated_file_gets_no_name(hub: HubState, tmp_path: Path) -> None:
    hub.always["storage"] = Fault(content=hub.files[SAMPLE[0]][:-100])
    with pytest.raises(DataError, match="the server offers"):
        download(tmp_path)
    assert not (tmp_path / SAMPLE[0]).exists()


def test_wrong_content_of_the_right_length_is_fetched_once_more(hub: HubState, tmp_path: Path) -> None:
    wrong = b"?" * len(hub.files[SAMPLE[0]])
    hub.faults["storage"] = [Fault(content=wrong)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    hub.always["storage"] = Fault(content=b"?" * len(hub.files[SAMPLE[1]]))
    with pytest.raises(DataError, match=r"checksum.*2 times in a row; nothing of it was kept"):
        download(tmp_path, 2)
    assert not (tmp_path / SAMPLE[1]).exists()
    assert not partials(tmp_path)


def test_wrong_content_of_a_small_file_is_found(hub: HubState, tmp_path: Path) -> None:
    hub.card["configs"] = [{"config_name": "notes", "data_files": "notes/*"}]
    content = hub.files["notes/words.jsonl"]
    hub.always["resolve"] = Fault(content=b"?" * len(content), etag=git_blob_sha1(content))
    with pytest.raises(DataError, match="checksum"):
        download(tmp_path, config="notes")


def test_what_is_no_parquet_gets_no_name_though_its_checksum_is_right(hub: HubState, tmp_path: Path) -> None:
    hub.files[SAMPLE[0]] = hub.files[SAMPLE[0]][:-1] + b"?"
    with pytest.raises(DataError, match="is no parquet file, though it is what the hub has"):
        download(tmp_path)
    assert not (tmp_path / SAMPLE[0]).exists()


def test_a_server_without_ranges_is_read_from_the_first_byte(hub: HubState, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(break_after=1000), Fault(whole=True)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]


@pytest.mark.parametrize("heeds_if_range", [True, False])
def test_a_file_that_changes_in_storage_is_not_stitched(hub: HubState, tmp_path: Path, heeds_if_range: bool) -> None:
    other = Fault(etag="other", content=b"?" * 900 + hub.files[SAMPLE[0]][900:])
    honest = Fault(etag="third")
    if heeds_if_range:  # it sends its whole new content, whose checksum is wrong
        hub.faults["storage"] = [Fault(break_after=1000), other, honest]
    else:  # it sends a range of another content: the right bytes follow the wrong ones
        hub.faults["storage"] = [Fault(break_after=1000, content=other.content, etag="first"), honest, honest]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]


def test_bytes_of_an_older_version_are_dropped(hub: HubState, tmp_path: Path) -> None:
    hub.always["storage"] = Fault(break_after=1000, whole=True)
    with pytest.raises(DataError):
        download(tmp_path)
    old = partials(tmp_path)
    hub.always.clear()
    hub.requests.clear()
    hub.files[SAMPLE[0]] = parquet("a new version")
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert "range" not in hub.asked("storage")[0]
    assert len(old) == 1
    assert not partials(tmp_path)


def test_a_hub_that_changed_its_mind_is_told(hub: HubState, tmp_path: Path) -> None:
    hub.always["resolve"] = Fault(etag="0" * 64)
    with pytest.raises(DataError, match="changed on the hub since it was listed"):
        download(tmp_path)


def test_free_space_is_checked_before_anything_is_fetched(
    hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(len(hub.files[path]) for path in SAMPLE)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": total - 1}))
    with pytest.raises(DataError, match=r"GB free, and 0\.\d+ GB are to be downloaded"):
        download(tmp_path, 5)
    assert not hub.asked("storage")
    download(tmp_path, 4)
    download(tmp_path, 5)  # only the fifth is missing now


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_others_fill_is_said_and_the_download_goes_on_later(
    hub: HubState, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"?" * 40_000)
    with monkeypatch.context() as before:  # the space was free when the download began
        before.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10**9}))
        with pytest.raises(DataError, match=f"no space left in {small_disk}: free some and call again"):
            download(small_disk, 2, max_workers=1)
    assert not (small_disk / SAMPLE[1]).exists()
    filler.unlink()
    files = download(small_disk, 2)
    assert [file.read_bytes() for file in files] == [hub.files[path] for path in SAMPLE[:2]]
    assert not partials(small_disk)


def test_a_silent_server_is_left_and_the_transfer_goes_on_at_its_byte(
    hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    hub.faults["storage"] = [Fault(pause_s=60)]
    assert download(tmp_path)[0].read_bytes() == hub.files[SAMPLE[0]]
    assert hub.asked("storage")[1]["range"] == f"bytes={len(hub.files[SAMPLE[0]]) // 2}-"


def test_a_hub_that_cannot_be_reached_does_not_matter_to_a_complete_folder(hub: HubState, tmp_path: Path) -> None:
    files = download(tmp_path, 2)
    hub.always["info"] = Fault(status=503)
    assert download(tmp_path, 2) == files
    with pytest.raises(DataError, match="the server answers 503"):
        download(tmp_path, 3)
    files[1].unlink()
    with pytest.raises(DataError, match="the server answers 503"):
        download(tmp_path, 2)


def test_the_hubs_own_cache_serves(hub: HubState, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / f"datasets--{REPOSITORY.replace('/', '--')}" / "snapshots" / COMMIT
    for path, content in ((SAMPLE[0], hub.files[SAMPLE[0]]), (SAMPLE[1], b"?" * len(hub.files[SAMPLE[1]]))):
        (cached / path).parent.mkdir(parents=True, exist_ok=True)
        (cached / path).write_bytes(content)
    files = download(tmp_path / "data", 2)
    assert [path for kind, path, _ in hub.requests if kind == "storage"] == [f"/storage/{SAMPLE[1]}"]
    assert [file.read_bytes() for file in files] == [hub.files[path] for path in SAMPLE[:2]]
    assert (cached / SAMPLE[1]).read_bytes() == b"?" * len(hub.files[SAMPLE[1]])


def test_the_token_goes_to_the_hub_alone(hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    with pytest.raises(DataError, match="wants a token"):
        download(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.requests.clear()
    assert len(download(tmp_path, 3)) == 3
    assert all(("authorization" in headers) == (kind != "storage") for kind, _, headers in hub.requests)


def test_a_path_that_leaves_the_folder_is_refused(hub: HubState, tmp_path: Path) -> None:
    hub.files["sample/10BT/../../../evil.parquet"] = hub.files[SAMPLE[0]]
    with pytest.raises(DataError, match="would lie outside of its folder"):
        download(tmp_path / "data")


def test_another_dataset_wants_another_folder(hub: HubState, tmp_path: Path) -> None:
    download(tmp_path)
    with pytest.raises(DataError, match=f"holds files of {REPOSITORY}: choose another folder for owner/notes"):
        download(tmp_path, repository="owner/notes")


def test_two_calls_at_once_fetch_each_file_once(hub: HubState, tmp_path: Path) -> None:
    hub.always["storage"] = Fault(pause_s=0.05)
    results: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: results.append(download(tmp_path, 5))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(files) for files in results] == [5, 5]
    assert len(hub.asked("storage")) == 5
