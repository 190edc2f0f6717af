"""Where the items of tasks lie: a folder, or an archive by its address and checksum, which is fetched once."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urldefrag

from efficientbench.config.errors import ConfigError
from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.files import complete_file, complete_folder, disk_errors_explained, exclusive_lock
from efficientbench.running.trained import TrainedRun

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60
"""Without a byte from the server."""


def find_data(given: str | None, run_folder: Path) -> Path | None:
    """Return the folder that `--data` names; of an address, what its archive holds, kept in the run's `data.cache`.

    Raises:
        ConfigError: an address has no checksum, or it is no folder of a run.
        DataError: it cannot be fetched, is no zip archive, or has another checksum.
    """
    if given is None or "://" not in given:
        return None if given is None else Path(given)
    address, fragment = urldefrag(given)
    checksum = re.fullmatch("sha256=([0-9a-f]{64})", fragment.lower())
    if checksum is None:
        raise ConfigError(f"--data: {address}: add its checksum, {address}#sha256=…: 64 hexadecimal digits")
    cache = Path(TrainedRun.read(run_folder).job.config.data.cache).absolute() / "evaluation"
    with disk_errors_explained(cache):
        return fetch_archive(address, checksum[1], cache)


def fetch_archive(address: str, checksum: str, cache: Path) -> Path:
    """Return the folder of a zip archive's content; fetch and unpack it unless that was done before.

    Args:
        address: of the archive.
        checksum: SHA-256 (hex) of it.
        cache: where it goes.

    Raises:
        DataError: it cannot be fetched, is no zip archive, or has another checksum.
        OSError: the disk refuses.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / checksum
    with exclusive_lock(cache / f"{checksum}.lock"):
        if not folder.is_dir():
            archive = cache / f"{checksum}.zip"
            _fetch(address, checksum, archive)
            try:
                with complete_folder(folder) as partial, zipfile.ZipFile(archive) as content:
                    content.extractall(partial)
            except zipfile.BadZipFile:
                raise DataError(f"{address}: it is no zip archive") from None
            finally:
                archive.unlink()
    inside = [path for path in folder.iterdir() if not path.name.startswith(("__MACOSX", "."))]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _fetch(address: str, checksum: str, path: Path) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer, complete_file(path) as file:
            while block := answer.read(BLOCK_BYTES):
                digest.update(block)
                file.write(block)
            if digest.hexdigest() != checksum:
                raise DataError(f"{address}: its SHA-256 is {digest.hexdigest()}, not {checksum}: nothing was kept")
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
        raise DataError(f"{address}: cannot be fetched: {getattr(error, 'reason', error)}") from None
