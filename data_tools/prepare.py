"""From a dataset on the hub to tokens on disk and their statistics, in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from efficientbench.data_tools.documents import TEXT_KEY
from efficientbench.data_tools.download import DownloadRequest, download_dataset
from efficientbench.data_tools.inspection import describe_pair, tokenizer_of
from efficientbench.data_tools.jsonl_copy import jsonl_copy
from efficientbench.data_tools.manifest import Corpus
from efficientbench.data_tools.tokenize import MAX_REJECTS, tokenize_files

logger = logging.getLogger(__name__)


def prepare_dataset(
    request: DownloadRequest,
    prefix: Path,
    tokenizer: str,
    *,
    text_key: str = TEXT_KEY,
    workers: int = 1,
    max_rejects: float = MAX_REJECTS,
    jsonl_folder: Path | None = None,
    on_part: Callable[[int, int], None] = lambda done, parts: None,
) -> Corpus:
    """Download a dataset, tokenize it into the pair `prefix`, and keep a JSONL copy of parquet files where wanted.

    jsonl_folder: where the copies go, under the files' paths in the dataset; None for no copies.
    text_key, workers, max_rejects, on_part: as `tokenize_files` has them.

    Each step keeps what it finds finished, so that a call after an interruption goes on.

    Raises:
        DataError: what keeps one of the steps from its end.
        OSError: the disk refuses a copy.
    """
    files = download_dataset(request)
    corpus = tokenize_files(
        files, prefix, tokenizer, text_key=text_key, workers=workers, max_rejects=max_rejects, on_part=on_part
    )
    if jsonl_folder is not None:
        for file in files:
            if file.suffix != ".parquet":
                continue
            target = (jsonl_folder / file.relative_to(request.folder)).with_suffix(".jsonl")
            if jsonl_copy(file, target):
                logger.info("copied to %s", target)
    return corpus


def statistics_lines(prefix: Path) -> Iterator[str]:
    """A prepared pair in figures and a histogram, for people."""
    return describe_pair(prefix, tokenizer_of(prefix, None), documents=0)
