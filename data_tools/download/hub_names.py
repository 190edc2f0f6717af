"""Names of repositories on the Hugging Face hub and on ModelScope, and server messages without secrets."""

from __future__ import annotations

import os
import re

MODELSCOPE = "modelscope:"
"""Prefix of names on ModelScope; other names are the hub's."""


def is_of_modelscope(name: str) -> bool:
    """Return whether a repository's name is on ModelScope."""
    return name.startswith(MODELSCOPE)


def modelscope_endpoint() -> str:
    """Return the address of ModelScope, or of another site with its API (`MODELSCOPE_ENDPOINT`)."""
    return (os.environ.get("MODELSCOPE_ENDPOINT") or "https://www.modelscope.cn").rstrip("/")


def without_secrets(text: str) -> str:
    """Return a server's message without the user's token, which it may repeat, and without credentials in addresses."""
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "<token>") if token else text
    return re.sub(r"//[^/@\s]+@", "//", text)
