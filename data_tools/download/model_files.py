"""Downloads the files of a model that match name patterns, from the hub or from ModelScope."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.files import disk_errors_explained, exclusive_lock
from efficientbench.data_tools.download.dataset import complete
from efficientbench.data_tools.download.download_record import STATE_FOLDER, load_record
from efficientbench.data_tools.download.hub_names import is_of_modelscope, without_secrets
from efficientbench.data_tools.download.hub_requests import HubUnreachableError, Patience
from efficientbench.data_tools.download.listing import Listing
from efficientbench.data_tools.download.modelscope import REVISION, model_rows, repository_files, repository_name

_TIMEOUT_S = 10
_FEW = Patience(attempts=3)


def fetch_from_hub(name: str, patterns: Sequence[str]) -> Path:
    """Download a model's files that match, and return their folder; use the cache if the hub is unreachable.

    `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` apply. The prefix `modelscope:` means ModelScope.

    Raises:
        DataError: the name does not exist, or neither the hub nor the cache has the files.
    """
    if is_of_modelscope(name):
        return _fetch_from_modelscope(name, patterns)
    # Imported here: a local folder needs no hub.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        # A request with a timeout comes first: snapshot_download hangs on a network that drops packets.
        HfApi().model_info(name, timeout=_TIMEOUT_S)
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except HFValidationError:
        raise DataError(f"{name!r} is neither a folder here nor a name that the Hugging Face hub could have") from None
    except RepositoryNotFoundError:
        raise DataError(
            f"{name!r} is no folder here, and the Hugging Face hub has no such name (or wants a token for it: HF_TOKEN)"
        ) from None
    except Exception as error:  # neither its errors nor those of its HTTP library have a common class
        reason = without_secrets(first_line(error))
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=True))
    except Exception:  # as above
        raise DataError(
            f"{name!r} is no folder here, and cannot be downloaded from the Hugging Face hub ({reason}), nor is it in "
            "the hub's local cache: give the path of a folder; HF_HOME=FOLDER chooses another cache"
        ) from None


def _fetch_from_modelscope(repository: str, patterns: Sequence[str]) -> Path:
    """Download a model's files that are missing or have changed, and return their folder.

    Raises:
        DataError: the model does not exist or has no such file, or ModelScope is unreachable and a file is missing.
    """
    cache = os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope"
    folder = Path(os.path.expanduser(cache)) / "efficientbench" / repository_name(repository)
    with disk_errors_explained(folder):
        (folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / STATE_FOLDER / "lock"):
            record = load_record(folder, repository)
            key = " ".join(patterns)
            try:
                found = repository_files(repository, REVISION, model_rows, _FEW)
            except HubUnreachableError:
                listing = record.listings.get(key)
                if listing is None or not all(record.holds(file) for file in listing.files):
                    raise
                return folder
            files = tuple(
                file for file in found if any("/" not in file.path and fnmatch(file.path, each) for each in patterns)
            )
            if not files:
                raise DataError(f"{repository} has none of the files {', '.join(patterns)}")
            listing = record.listings[key] = Listing(repository, REVISION, files)
            record.save()
            complete(listing, record, 3, _FEW, kind="models")
    return folder
