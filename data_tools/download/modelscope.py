"""Downloads datasets and tokenizers from ModelScope, by names like modelscope:Qwen/Qwen2.5-0.5B.

The endpoints are those of ModelScope's own client (github.com/modelscope/modelscope: hub/api.py, hub/file_download.py):

| below /api/v1 | answers |
|---|---|
| models/NAME/repo/files | the files of a model |
| datasets/NAME, then datasets/ID/repo/tree | the files of a dataset, page by page |
| models/NAME/repo and datasets/NAME/repo | one file |

`MODELSCOPE_ENDPOINT` is another site's address, `MODELSCOPE_CACHE` the folder of tokenizers. No token is sent, so only
public repositories can be downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlencode

from huggingface_hub.errors import HfHubHTTPError

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.download.hub_names import MODELSCOPE, modelscope_endpoint
from efficientbench.data_tools.download.hub_requests import (
    MOST_PAGES,
    Patience,
    hub_errors_explained,
    json_pages,
    retry,
)
from efficientbench.data_tools.download.listing import (
    DATA_SUFFIXES,
    FINEWEB_EDU_SAMPLES,
    Listing,
    RemoteFile,
    inside,
)
from efficientbench.data_tools.download.transfer import Transfer

REVISION = "master"
"""The default branch of repositories on ModelScope."""
PAGE = 100
"""Files per page; the server sends no more."""

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Pattern of OWNER/NAME."""


@dataclass
class ModelScopeTransfer(Transfer):
    """The download of one file from ModelScope."""

    kind: str = "datasets"

    def adopt_cached(self) -> None:
        """Do nothing: the hub's cache has no files of ModelScope."""

    def _location(self) -> str:
        # FilePath comes last in the client's own requests as well.
        asked = urlencode({"Source": "SDK", "Revision": self.commit, "FilePath": self.file.path})
        return f"{modelscope_endpoint()}/api/v1/{self.kind}/{repository_name(self.repository)}/repo?{asked}"


def list_modelscope(
    repository: str,
    config: str | None,
    revision: str,
    num_files: int,
    patience: Patience,
    split: str | None = None,
) -> Listing:
    """List the first `num_files` document files of a dataset, by path; of FineWeb-Edu, those of a sample.

    Raises:
        DataError: the dataset does not exist or has no document file, a split or any configuration but a FineWeb-Edu
            sample was asked for, or the response is not valid.
        HubUnreachableError: ModelScope cannot be reached.
    """
    samples = FINEWEB_EDU_SAMPLES if repository.lower().endswith("/fineweb-edu") else {}
    if split is not None or (config is not None and config not in samples):
        raise DataError(f"{repository}: ModelScope names the files of no configuration or split: leave --config out")
    folder = samples[config or next(iter(samples))].rstrip("*") if samples else ""
    found = repository_files(repository, revision, _dataset_rows, patience)
    wanted = [file for file in found if file.path.lower().endswith(DATA_SUFFIXES) and file.path.startswith(folder)]
    if not wanted:
        raise DataError(f"{repository} has no file at revision {revision!r} that ends in {', '.join(DATA_SUFFIXES)}")
    return Listing(repository, revision, tuple(sorted(wanted, key=lambda file: file.path)[:num_files]))


def repository_name(repository: str) -> str:
    """Return OWNER/NAME, without the prefix. Raises DataError if the name is not valid."""
    name = repository.removeprefix(MODELSCOPE)
    if not _NAME.fullmatch(name) or ".." in name:
        raise DataError(f"{repository!r} cannot be a name on ModelScope: write {MODELSCOPE}OWNER/NAME")
    return name


def repository_files(
    repository: str, revision: str, rows: Callable[[str, str], Iterator[Any]], patience: Patience
) -> list[RemoteFile]:
    """Return the files of a repository, from the `rows` of its name and revision.

    Raises:
        DataError: the repository or revision does not exist, or the response is not valid.
        HubUnreachableError: ModelScope cannot be reached.
    """
    name = repository_name(repository)

    def ask() -> list[RemoteFile]:
        with hub_errors_explained(repository, revision):
            return [_remote_file(row) for row in rows(name, revision) if row["Type"] != "tree"]

    return retry(repository, ask, patience)


def model_rows(name: str, revision: str) -> Iterator[Any]:
    """Yield the rows of a model's file list."""
    yield from _answer(f"models/{name}/repo/files", {"Revision": revision, "Recursive": "True"})["Files"] or []


def _dataset_rows(name: str, revision: str) -> Iterator[Any]:
    identity = _answer(f"datasets/{name}", {})["Id"]
    asked = {"Revision": revision, "Root": "/", "Recursive": "True", "PageSize": PAGE}
    for page in range(1, MOST_PAGES + 1):
        rows = _answer(f"datasets/{identity}/repo/tree", {**asked, "PageNumber": page})["Files"] or []
        yield from rows
        if len(rows) < PAGE:
            return
    raise DataError(f"{MODELSCOPE}{name} has files on more than {MOST_PAGES:,} pages")


def _answer(path: str, asked: dict[str, Any]) -> Any:
    """Return the data of a response. Raises DataError if ModelScope has no such repository or revision."""
    missing = f"{modelscope_endpoint()}: no such repository or revision, or it is not public: /{path}"
    try:
        answer = next(json_pages(f"{modelscope_endpoint()}/api/v1/{path}", asked))
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403, 404):
            raise DataError(missing) from None
        raise
    if answer["Code"] != 200:
        raise DataError(f"{missing} ({answer['Message']})")
    return answer["Data"]


def _remote_file(row: dict[str, Any]) -> RemoteFile:
    if not inside(PurePosixPath(row["Path"])):
        raise DataError(f"ModelScope lists the file {row['Path']!r}, which would lie outside of its folder")
    return RemoteFile(row["Path"], row["Size"], row["Sha256"])
