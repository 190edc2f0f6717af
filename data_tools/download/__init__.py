"""Datasets from the Hugging Face hub: resumed at the byte, checked, several files at once.

    files = download_dataset(DownloadRequest(repository="HuggingFaceFW/fineweb-edu", folder=Path("data/fineweb-edu")))

| module | what |
|---|---|
| `listing` | which files a configuration has, with sizes and checksums |
| `transfer` | one file: Range requests, checks, its name |
| `dataset` | all of it: what is missing, free space, several at once |
| `record` | what lies in a folder already |
| `requests` | retries, waits, errors in words |
| `progress` | files and bytes |
"""

from efficientbench.data_tools.download.dataset import DownloadRequest, download_dataset

__all__ = ["DownloadRequest", "download_dataset"]
