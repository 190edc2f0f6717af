"""The Hugging Face hub: files by a repository's name, kept in the hub's own local cache (`HF_HOME`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from efficientbench.data_tools.errors import DataError, first_line

_TIMEOUT_S = 10


def fetch_from_hub(name: str, patterns: Sequence[str]) -> Path:
    """The local folder of a model repository's files that match; the cache serves where the hub cannot.

    `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` are honoured.

    Raises:
        DataError: no such name, or neither hub nor cache can give it.
    """
    # Imported here: whoever has a folder needs no hub.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        # Asked first, since snapshot_download waits without end for a network that swallows what is sent to it.
        HfApi().model_info(name, timeout=_TIMEOUT_S)
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except HFValidationError:
        raise DataError(f"{name!r} is neither a folder here nor a name that the Hugging Face hub could have") from None
    except RepositoryNotFoundError:
        raise DataError(
            f"{name!r} is no folder here, and the Hugging Face hub has no such name (or wants a token for it: HF_TOKEN)"
        ) from None
    except Exception as error:  # its errors have no common class, nor have those of the HTTP library below it
        reason = without_secrets(first_line(error))
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=True))
    except Exception:  # as above
        raise DataError(
            f"{name!r} is no folder here, and cannot be had from the Hugging Face hub ({reason}), nor is it in the "
            "hub's local cache: give the path of a folder"
        ) from None


def without_secrets(text: str) -> str:
    """A foreign message, without the token that a server may have sent back, and without the user in an address."""
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "<token>") if token else text
    return re.sub(r"//[^/@\s]+@", "//", text)
