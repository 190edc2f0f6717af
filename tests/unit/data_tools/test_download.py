"""What is downloaded from a hub on this machine, what is not downloaded again, and which mistakes are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replicas.hub_server import COMMIT, REPOSITORY, Fault, HubState
from support.downloads import SAMPLE, download, partials

from efficientbench.basics.errors import DataError


def test_the_default_download_is_the_small_sample_at_its_revision(hub: HubState, tmp_path: Path) -> None:
    files = download(tmp_path / "data", 200)
    assert files == [tmp_path / "data" / path for path in SAMPLE]
    assert [file.read_bytes() for file in files] == [hub.files[path] for path in SAMPLE]
    assert not partials(tmp_path)
    info, *trees = [path for kind, path, _ in hub.requests if kind in ("info", "tree")]
    assert info.endswith("/revision/v1.2.0")
    assert len(trees) == 3  # of two files each
    assert all(path.endswith(f"/tree/{COMMIT}/sample/10BT") for path in trees)
    assert len(hub.asked("storage")) == 5


def test_a_second_call_downloads_nothing(hub: HubState, tmp_path: Path) -> None:
    assert download(tmp_path, 2) == [tmp_path / path for path in SAMPLE[:2]] == download(tmp_path, 2)
    assert not (tmp_path / SAMPLE[2]).exists()
    assert len(hub.asked("storage")) == 2


def test_an_existing_file_without_a_record_is_checked_not_fetched(hub: HubState, tmp_path: Path) -> None:
    (tmp_path / "sample/10BT").mkdir(parents=True)
    (tmp_path / SAMPLE[0]).write_bytes(hub.files[SAMPLE[0]])
    (tmp_path / SAMPLE[1]).write_bytes(hub.files[SAMPLE[1]][:-1] + b"?")
    files = download(tmp_path, 2)
    assert [path for kind, path, _ in hub.requests if kind == "storage"] == [f"/storage/{SAMPLE[1]}"]
    assert files[1].read_bytes() == hub.files[SAMPLE[1]]


def test_a_file_changed_locally_or_on_the_hub_is_fetched_again(hub: HubState, tmp_path: Path) -> None:
    download(tmp_path, 3)
    hub.requests.clear()
    content = hub.files[SAMPLE[0]]
    (tmp_path / SAMPLE[0]).write_bytes(b"?" + content[1:])
    hub.files[SAMPLE[1]] = hub.files[SAMPLE[1]].replace(b"another", b"changed")
    download(tmp_path, 3)
    assert len(hub.asked("storage")) == 2
    assert [(tmp_path / path).read_bytes() for path in SAMPLE[:2]] == [content, hub.files[SAMPLE[1]]]


@pytest.mark.parametrize(("path", "digits"), [("notes/words.jsonl", 40), ("notes/more.jsonl.zst", 64)])
def test_the_document_files_of_any_dataset_are_downloaded(
    hub: HubState, tmp_path: Path, path: str, digits: int
) -> None:
    hub.repository = "owner/notes"
    hub.files = {path: b'{"text": "words"}\n' * 50, "README.md": b"#", "info.json": b"{}"}
    assert download(tmp_path, 200, repository="owner/notes") == [tmp_path / path]
    assert [path for kind, path, _ in hub.requests if kind == "info"][0].endswith("owner/notes/revision/main")
    record = json.loads((tmp_path / ".download" / "record").read_text())
    assert len(record["finished"][path][0]) == digits


@pytest.mark.parametrize(
    "declared",
    [
        {"config_name": "notes", "data_files": "notes/*.jsonl"},
        {"config_name": "notes", "data_files": [{"split": "train", "path": ["notes/*.jsonl"]}]},
        {"config_name": "notes", "data_dir": "notes"},
    ],
)
def test_a_configuration_of_the_dataset_card_is_used(
    hub: HubState, tmp_path: Path, declared: dict[str, object]
) -> None:
    hub.card["configs"] = [declared]
    assert download(tmp_path, config="notes") == [tmp_path / "notes/words.jsonl"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"repository": "owner/nothing"}, "no such dataset, or it wants a token"),
        ({"repository": "what is this?"}, "cannot be the name of a dataset"),
        ({"revision": "v9"}, "has no revision 'v9'"),
        ({"config": "sample-10B"}, r"no configuration 'sample-10B'.*did you mean sample-10BT\?"),
        ({"config": "sample-350BT"}, "has no folder 'sample/350BT'"),
        ({"num_files": 0}, "is at least 1"),
    ],
)
def test_a_mistake_is_reported(hub: HubState, tmp_path: Path, words: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        download(tmp_path, **words)  # type: ignore[arg-type]


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


def test_a_complete_folder_needs_no_reachable_hub(hub: HubState, tmp_path: Path) -> None:
    files = download(tmp_path, 2)
    hub.always["info"] = Fault(status=503)
    assert download(tmp_path, 2) == files
    with pytest.raises(DataError, match="the server answers 503"):
        download(tmp_path, 3)
    files[1].unlink()
    with pytest.raises(DataError, match="the server answers 503"):
        download(tmp_path, 2)


def test_files_in_the_hubs_cache_are_used(hub: HubState, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / f"datasets--{REPOSITORY.replace('/', '--')}" / "snapshots" / COMMIT
    for path, content in ((SAMPLE[0], hub.files[SAMPLE[0]]), (SAMPLE[1], b"?" * len(hub.files[SAMPLE[1]]))):
        (cached / path).parent.mkdir(parents=True, exist_ok=True)
        (cached / path).write_bytes(content)
    files = download(tmp_path / "data", 2)
    assert [path for kind, path, _ in hub.requests if kind == "storage"] == [f"/storage/{SAMPLE[1]}"]
    assert [file.read_bytes() for file in files] == [hub.files[path] for path in SAMPLE[:2]]
    assert (cached / SAMPLE[1]).read_bytes() == b"?" * len(hub.files[SAMPLE[1]])


def test_the_token_is_sent_only_to_the_hub(hub: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_folder_of_another_dataset_is_refused(hub: HubState, tmp_path: Path) -> None:
    download(tmp_path)
    with pytest.raises(DataError, match=f"holds files of {REPOSITORY}: choose another folder for owner/notes"):
        download(tmp_path, repository="owner/notes")
