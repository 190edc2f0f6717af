"""Datasets and tokenizers from a ModelScope on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replicas.modelscope_server import Site, served
from support.downloads import download

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.download import modelscope
from efficientbench.data_tools.download.hub_requests import Patience
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer

NO_SERVER = "http://127.0.0.1:9"
TEXTS = {f"data/{number}.jsonl": b'{"text": "%d"}\n' % number * 400 for number in range(5)}


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with served({"README.md": b"about", **TEXTS}, "datasets", monkeypatch) as site:
        yield site


def test_a_dataset_listed_in_pages_is_downloaded(dataset: Site, tmp_path: Path) -> None:
    dataset.breaks = 1
    files = download(tmp_path, 9, repository="modelscope:owner/some", max_workers=1)
    assert {str(file.relative_to(tmp_path)): file.read_bytes() for file in files} == TEXTS
    # Seven rows, the folder's included, are three pages of three.
    assert [asked["PageNumber"] for path, asked, _ in dataset.asked if path.endswith("/tree")] == ["1", "2", "3"]
    ranges = [headers.get("range") for path, _, headers in dataset.asked if path.endswith("/repo")]
    assert ranges == [None, "bytes=1000-", None, None, None, None]
    assert not [headers for *_, headers in dataset.asked if "authorization" in headers or "sesame" in str(headers)]


def test_a_complete_download_needs_no_site(dataset: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = download(tmp_path, 2, repository="modelscope:owner/some")
    assert [file.name for file in files] == ["0.jsonl", "1.jsonl"]
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", NO_SERVER)
    assert download(tmp_path, 2, repository="modelscope:owner/some") == files
    with pytest.raises(DataError, match=r"127\.0\.0\.1 cannot be reached: .*is there a network here\?"):
        download(tmp_path, 3, repository="modelscope:owner/some")


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ({"Path": "../x.jsonl"}, {}, "would lie outside of its folder"),
        ({"Path": "/x.jsonl"}, {}, "would lie outside of its folder"),
        ({"Sha256": None}, {}, "is MODELSCOPE_ENDPOINT a mirror"),
        ({"Path": "x.png"}, {}, "has no file at revision 'master' that ends in .parquet"),
        ({}, {"repository": "modelscope:owner/other"}, "no such repository or revision"),
        ({}, {"repository": "modelscope:../../x"}, "cannot be a name on ModelScope"),
        ({}, {"revision": "v9"}, "no such repository or revision"),
        ({}, {"config": "small"}, "leave --config out"),
        ({}, {"split": "train"}, "leave --config out"),
    ],
)
def test_wrong_repositories_and_implausible_listings_are_refused(
    dataset: Site, tmp_path: Path, row: dict[str, Any], more: dict[str, str], message: str
) -> None:
    dataset.row = row
    with pytest.raises(DataError, match=message):
        download(tmp_path / "here", **{"repository": "modelscope:owner/some", **more})  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == []


def test_a_file_with_wrong_content_is_not_stored(dataset: Site, tmp_path: Path) -> None:
    dataset.served = b"x" * len(TEXTS["data/0.jsonl"])
    with pytest.raises(DataError, match="checksum"):
        download(tmp_path, repository="modelscope:owner/some")
    assert not list(tmp_path.rglob("*.jsonl"))


def test_fineweb_edu_lists_a_sample_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["sample/10BT/0.jsonl", "sample/10BT_old/0.jsonl", "sample/100BT/0.jsonl", "data/0.jsonl"]
    seen: list[str] = []

    def files(repository: str, *_: Any) -> list[modelscope.RemoteFile]:
        seen.append(repository)
        return [modelscope.RemoteFile(name, 1, "0" * 64) for name in names]

    monkeypatch.setattr(modelscope, "repository_files", files)
    for config, wanted in ((None, names[0]), ("sample-100BT", names[2])):
        listing = modelscope.list_modelscope("modelscope:other/fineweb-edu", config, "master", 9, Patience())
        assert [file.path for file in listing.files] == [wanted]
    assert seen == ["modelscope:other/fineweb-edu"] * 2


def test_a_tokenizer_is_fetched_once_and_then_loaded_without_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_tokenizer(["some words"], 260, tmp_path / "words")
    words = {path.name: path.read_bytes() for path in (tmp_path / "words").iterdir()}
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    weights = {"model.safetensors": b"large", "deep/tokenizer.json": b"{}"}
    with served({**words, **weights}, "models", monkeypatch) as site:
        found = load_tokenizer("modelscope:owner/some")
        assert found.fingerprint == load_tokenizer(tmp_path / "words").fingerprint
        fetched = {asked["FilePath"] for path, asked, _ in site.asked if path.endswith("/repo")}
        assert "tokenizer.json" in fetched <= set(words)
        for name, message in (("other", "no such repository"), ("closed", r"not public: .*\(closed\)")):
            with pytest.raises(DataError, match=message):
                load_tokenizer(f"modelscope:owner/{name}")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", NO_SERVER)
    assert load_tokenizer("modelscope:owner/some").fingerprint == found.fingerprint
    with pytest.raises(DataError, match="cannot be reached"):
        load_tokenizer("modelscope:owner/never")
