"""Downloads datasets from the Hugging Face hub or ModelScope: resumable at the byte, verified, several files at once.

    files = download_dataset(DownloadRequest(repository="HuggingFaceFW/fineweb-edu", folder=Path("data/fineweb-edu")))

| module | what |
|---|---|
| `listing`, `modelscope` | the files of a configuration on the hub or on ModelScope, with sizes and checksums |
| `transfer` | one file: Range requests, checksum, rename |
| `dataset` | all files: the missing ones, free space, parallel transfers, progress |
| `download_record` | which files a folder has already |
| `hub_requests` | retries, waits, errors |
"""

from efficientbench.data_tools.download.dataset import DownloadRequest, download_dataset

__all__ = ["DownloadRequest", "download_dataset"]
