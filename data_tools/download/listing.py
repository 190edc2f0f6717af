"""Lists the files of a dataset's configuration on the hub, with their sizes and checksums."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from fsspec.utils import glob_translate
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import validate_repo_id
from pydantic import Field, StrictInt, StrictStr, TypeAdapter
from pydantic.dataclasses import dataclass

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.download.hub_requests import (
    Patience,
    hub_errors_explained,
    json_pages,
    retry,
)

FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_REVISION = "v1.2.0"
FINEWEB_EDU_SAMPLES = {f"sample-{size}": f"sample/{size}/*" for size in ("10BT", "100BT", "350BT")}
"""Path patterns of FineWeb-Edu's samples; built in, so that a mirror without the dataset's card works too."""

DATA_SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".json.gz", ".json.zst", ".txt")
"""Suffixes of document files, for a request without configuration; plain .json is mostly metadata."""


Commit = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository at one commit. Raises ValueError for invalid values: a server may list anything."""

    path: Annotated[StrictStr, Field(min_length=1)]
    """The file's path inside the repository."""
    size_bytes: Annotated[StrictInt, Field(ge=0)]
    checksum: Annotated[StrictStr, Field(pattern="^([0-9a-f]{40}|[0-9a-f]{64})$")]
    """Hex; SHA-256 of the content (64 digits) in large-file storage, else the git blob's SHA-1 (40 digits). It is
    also the hub's ETag."""


@dataclass(frozen=True)
class Listing:
    """The files of a repository to download, at the commit that its revision named (on ModelScope, at the revision)."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


def default_revision(repository: str) -> str:
    """Return the revision of a request that names none."""
    return FINEWEB_EDU_REVISION if repository == FINEWEB_EDU else constants.DEFAULT_REVISION


def default_config(repository: str) -> str | None:
    """Return the configuration of a request that names none; None for all document files."""
    return next(iter(FINEWEB_EDU_SAMPLES)) if repository == FINEWEB_EDU else None


def list_dataset(
    repository: str,
    config: str | None,
    revision: str,
    num_files: int,
    patience: Patience,
    split: str | None = None,
) -> Listing:
    """List the first `num_files` files, by path, of a dataset's configuration, or of all its document files.

    With a split, list only the files of that split, in the configuration `default` if none is named.

    Raises:
        DataError: the dataset, revision, configuration or split does not exist or has no file, or the response is not
            valid.
        HubUnreachableError: the hub cannot be reached.
    """

    def info() -> tuple[str, Any]:
        url = f"{constants.ENDPOINT}/api/datasets/{repository}/revision/{quote(revision, safe='')}"
        with hub_errors_explained(repository, revision):
            validate_repo_id(repository)
            described = next(json_pages(url, None))
            return TypeAdapter(Commit).validate_python(described["sha"]), described.get("cardData")

    commit, card = retry(f"dataset {repository}", info, patience)
    try:
        patterns = _patterns(repository, config, card, split)
        folder = "" if patterns is None else _common_folder(patterns)
        expressions = [re.compile(glob_translate(pattern.removeprefix("./"))) for pattern in patterns or ()]
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"dataset {repository!r}: its card names files in a form that is not understood: leave --config out"
        ) from None

    def tree() -> list[RemoteFile]:
        with hub_errors_explained(repository, revision):
            try:
                return _tree(repository, commit, folder)
            except EntryNotFoundError:
                raise DataError(f"dataset {repository!r} has no folder {folder!r} at revision {revision!r}") from None

    everything = retry(f"files of {repository}", tree, patience)
    if patterns is None:
        wanted = [file for file in everything if file.path.lower().endswith(DATA_SUFFIXES)]
    else:
        wanted = [file for file in everything if any(each.match(file.path) for each in expressions)]
    if not wanted:
        sought = f"matches {', '.join(patterns)}" if patterns else f"ends in {', '.join(DATA_SUFFIXES)}"
        raise DataError(f"dataset {repository!r} has no file at revision {revision!r} that {sought}")
    wanted.sort(key=lambda file: file.path)
    return Listing(repository, commit, tuple(wanted[:num_files]))


def _tree(repository: str, commit: str, folder: str) -> list[RemoteFile]:
    url = f"{constants.ENDPOINT}/api/datasets/{repository}/tree/{commit}"
    if folder:
        url += f"/{quote(folder, safe='')}"
    rows = [row for page in json_pages(url, {"recursive": True, "expand": False}) for row in page]
    return [_remote_file(RepoFile(**row)) for row in rows if row["type"] == "file"]


def _remote_file(file: RepoFile) -> RemoteFile:
    # A server must not choose where on this disk its files go.
    if not inside(PurePosixPath(file.path)):
        raise DataError(f"the hub lists the file {file.path!r}, which would lie outside of its folder")
    if file.lfs is not None:
        return RemoteFile(file.path, file.lfs.size, file.lfs.sha256)
    return RemoteFile(file.path, file.size, file.blob_id)


def inside(path: PurePosixPath) -> bool:
    """Return whether a relative path that a server lists stays inside its folder."""
    return not path.is_absolute() and ".." not in path.parts


def _patterns(repository: str, config: str | None, card: Any, split: str | None) -> list[str] | None:
    """Return the path patterns of a configuration; None for all document files."""
    if split is not None:
        config = config or "default"
    if config is None:
        return None
    if repository == FINEWEB_EDU and config in FINEWEB_EDU_SAMPLES:
        return [FINEWEB_EDU_SAMPLES[config]]
    entries = (card or {}).get("configs") or []
    declared: dict[str, Any] = {
        entry.get("config_name", "default"): entry for entry in entries if isinstance(entry, dict)
    }
    if repository == FINEWEB_EDU:
        declared = {**dict.fromkeys(FINEWEB_EDU_SAMPLES), **declared}
    if config not in declared:
        nearest = difflib.get_close_matches(config, declared, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        shown = ", ".join([*declared][:8]) + (", …" if len(declared) > 8 else "")
        known = f"it has {shown}" if declared else "its card declares none: leave --config out"
        raise DataError(f"dataset {repository!r} has no configuration {config!r}: {known}{hint}")
    data_files, folder = declared[config].get("data_files"), declared[config].get("data_dir")
    if split is not None:
        data_files = _of_split(data_files, split, f"dataset {repository!r}, configuration {config!r}")
    return [*_paths(data_files, folder)]


def _of_split(data_files: Any, split: str, what: str) -> list[Any]:
    """Return the entries of one split in a card's `data_files`. Raises DataError if there are none."""
    entries = data_files if isinstance(data_files, list) else [data_files]
    splits = {entry["split"]: entry for entry in entries if isinstance(entry, dict)}
    if split not in splits:
        raise DataError(f"{what} has no split {split!r}: its card declares {', '.join(splits) or 'none'}")
    return [splits[split]]


def _paths(data_files: Any, folder: str | None) -> Iterable[str]:
    """Yield the patterns in a card's `data_files`: a pattern, a list of patterns, or a list of splits with patterns."""
    if data_files is None:
        yield f"{folder}/**" if folder else "**"
    elif isinstance(data_files, str):
        yield f"{folder}/{data_files}" if folder else data_files
    elif isinstance(data_files, dict):
        yield from _paths(data_files["path"], folder)
    else:
        for entry in data_files:
            yield from _paths(entry, folder)


def _common_folder(patterns: list[str]) -> str:
    """Return the deepest folder, without wildcards, that contains every match."""
    folders = [re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0].strip("/") for pattern in patterns]
    return posixpath.commonpath(folders) if folders else ""
