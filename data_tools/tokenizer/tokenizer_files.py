"""A tokenizer's folder: its path, its checksum, and the end-of-sequence token that its configuration names."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import sha256
from efficientbench.basics.foreign import check_folder, parse_json, read_whole

_FILE_PATTERNS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "config.json",
    "*.model",
)
"""The files of a tokenizer's folder that decide its ids; only these are downloaded from the hub."""


def tokenizer_folder(path_or_name: str | Path) -> Path:
    """Return the local folder of a tokenizer; download a tokenizer with a hub name into the hub's own cache.

    Raises:
        DataError: there is no such folder, or the hub has no such name or cannot be reached.
    """
    folder = Path(os.path.expanduser(path_or_name))  # Path's own method raises for an unknown user
    try:
        if folder.is_dir():
            # Libraries open these files by name, and would hang on a pipe, or read a device without end.
            check_folder(folder, _FILE_PATTERNS)
            return folder
        is_file = folder.is_file()
    except OSError as error:
        raise DataError(f"tokenizer {path_or_name}: {_named(error)}{error.strerror}") from None
    if is_file:
        raise DataError(f"tokenizer {path_or_name} is a file: give its folder")
    name = str(path_or_name)
    if _is_path(name):
        raise DataError(f"tokenizer folder {path_or_name} does not exist")
    # Its libraries are a tenth of a start, and a tokenizer that lies here needs none of them.
    from efficientbench.data_tools.download.model_files import fetch_from_hub

    return fetch_from_hub(name, _FILE_PATTERNS)


def folder_checksum(folder: Path) -> str:
    """Return the SHA-256 (hex) of a tokenizer folder's files, without loading the tokenizer.

    Raises:
        DataError: the folder holds no file of a tokenizer.
    """
    files = sorted(path for pattern in _FILE_PATTERNS for path in folder.glob(pattern))
    if not files:
        raise DataError(f"{folder} holds no tokenizer: none of {', '.join(_FILE_PATTERNS)}")
    return hashlib.sha256(" ".join([path.name + sha256(path) for path in files]).encode()).hexdigest()


def _named(error: OSError) -> str:
    """Return the name of the file that an error is about, if it has one."""
    return f"{Path(error.filename).name}: " if error.filename else ""


def _is_path(name: str) -> bool:
    """Return whether `name` is a path: names on the hub are `name` or `owner/name`."""
    if name.startswith((".", "~", os.sep)) or name.endswith(os.sep) or name.count(os.sep) > 1:
        return True
    return os.sep in name and Path(name).parent.is_dir()


def eos_token(folder: Path) -> str | None:
    """Return the end-of-sequence token that the folder's configuration names; None if it names none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            token = parse_json(read_whole(path)).get("eos_token")
        except (ValueError, AttributeError):
            raise DataError(f"{path} is not a JSON object") from None
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None and not isinstance(token, str):
            raise DataError(f"{path}: eos_token must be a text, it is: {token!r}")
        if token:
            return token
    return None
