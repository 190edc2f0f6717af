"""Downloads a model repository's files from the Hugging Face hub into its own local cache (`HF_HOME`)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from efficientbench.basics.errors import DataError, first_line

_TIMEOUT_S = 10

MODELSCOPE = "modelscope:"
"""What names on ModelScope begin with; other names are the hub's."""


def is_of_modelscope(name: str) -> bool:
    """Return whether a name of a repository is one on ModelScope."""
    return name.startswith(MODELSCOPE)


def modelscope_endpoint() -> str:
    """Return the address of ModelScope, or of another site with its interface (`MODELSCOPE_ENDPOINT`)."""
    return (os.environ.get("MODELSCOPE_ENDPOINT") or "https://www.modelscope.cn").rstrip("/")


def fetch_from_hub(name: str, patterns: Sequence[str]) -> Path:
    """Return the local folder of a model repository's files that match; from the cache if the hub is unreachable.

    `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` apply. A name that begins with `modelscope:` is one on
    ModelScope.

    Raises:
        DataError: no such name, or neither the hub nor the cache has it.
    """
    # Imported here: a tokenizer in a folder needs no hub.
    if is_of_modelscope(name):
        from efficientbench.data_tools.download.modelscope import fetch_model_files

        return fetch_model_files(name, patterns)
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        # A request with a timeout comes first: snapshot_download waits for ever on a network that drops packets.
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


def without_secrets(text: str) -> str:
    """Return a foreign message without the user's token, which a server may repeat, and without users in addresses."""
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "<token>") if token else text
    return re.sub(r"//[^/@\s]+@", "//", text)
