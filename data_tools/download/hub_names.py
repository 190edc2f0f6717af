"""Names of repositories on the Hugging Face hub and on ModelScope, and messages of theirs without secrets."""

from __future__ import annotations

import os
import re

MODELSCOPE = "modelscope:"
"""What names on ModelScope begin with; other names are the hub's."""


def is_of_modelscope(name: str) -> bool:
    """Return whether a name of a repository is one on ModelScope."""
    return name.startswith(MODELSCOPE)


def modelscope_endpoint() -> str:
    """Return the address of ModelScope, or of another site with its interface (`MODELSCOPE_ENDPOINT`)."""
    return (os.environ.get("MODELSCOPE_ENDPOINT") or "https://www.modelscope.cn").rstrip("/")


def without_secrets(text: str) -> str:
    """Return a foreign message without the user's token, which a server may repeat, and without users in addresses."""
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "<token>") if token else text
    return re.sub(r"//[^/@\s]+@", "//", text)
