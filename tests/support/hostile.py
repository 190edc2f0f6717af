"""What somebody who means harm writes into a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from efficientbench.training.checkpoints import manifest
from efficientbench.training.checkpoints.hashing import fingerprint
from efficientbench.training.checkpoints.manifest import MANIFEST


def rewrite_manifest(folder: Path, **fields: object) -> None:
    """What one who can write into the folder would do: make all checksums fit, and change fields of the manifest."""
    whole = json.loads((folder / MANIFEST).read_text())["content"]
    for name in list(whole["files"]):
        seen = fingerprint(folder / name)
        whole["files"][name] = {"sha256": seen.sha256, "bytes": seen.bytes}
    whole |= fields
    (folder / MANIFEST).write_text(manifest._text(whole))


class Touch:
    """Unpickled, it makes a file: what a hostile checkpoint would do, and worse."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch '{self.path}'",)
