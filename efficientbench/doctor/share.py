"""Packs what a run tells of its hardware, to be shared: record, the doctor's findings and the ranks' logs.

Paths, names of user and host, addresses and what a configuration says of texts and folders are left out.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import re
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from efficientbench.basics.checksum import with_checksum
from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.basics.foreign import read_whole
from efficientbench.config.schema import RunConfig
from efficientbench.devices.registry import all_devices
from efficientbench.doctor.doctor import check_device, check_machine
from efficientbench.metrics.files import whole_file
from efficientbench.metrics.records.record import RECORD_NAME, read_record
from efficientbench.running.output_folder import OutputFolder

REMOVED = "…"
"""Stands for what is left out."""
MOST_LINES = 1000
"""The most lines of a log that are packed: half of them from its beginning, half from its end."""
_NAMES = ("variant", "size", "device", "method", "match", "match_to")
_SECTIONS = ("model", "training", "parallel", "kernels", "checkpoint", "faults")
"""Keys and sections of a configuration whose texts name no file, text, place or account."""
_SHORTEST = 3
"""Letters of the shortest text that is looked for in others: shorter ones are parts of most words."""
_PATH = re.compile(r"(?<![\w./~-])(?:[A-Za-z][\w+.-]*:/|~)?/[^\s'\"`<>|,;:()\[\]{}]+")
"""An absolute path, or an address with a scheme."""
_ADDRESS = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){3,7}(?![\w:])"
)
"""An address of a network's interface: IPv4, IPv6 of three colons or more, Ethernet."""
_MANY = re.compile(f"{REMOVED}{{2,}}")
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")
_OF_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")


def pack(folder: Path) -> Path:
    """Write `shared.zip` into a run's folder, with record.json, doctor.txt and log/, and return its path.

    Raises:
        MetricsError: the folder has no record, a file cannot be read, or the archive cannot be written.
    """
    record = read_record(folder / RECORD_NAME).model_dump(mode="json")
    config, removed = _without_texts(record["config"])
    sources = [source["source"] for source in record["data"] or ()]
    places = (str(folder.absolute()), str(record["environment"].get("hostname") or ""))
    scrub = _Scrub([*_of_this_machine(), *places, *removed, *sources])
    record |= {"config": config, "run": f"{record['variant']}_{record['size']}"}
    record["data"] = record["data"] and [{**source, "source": REMOVED} for source in record["data"]]
    record["finetuning"] = _with_texts(record["finetuning"], lambda text: REMOVED)
    target = OutputFolder(folder).shared
    with whole_file(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        content = with_checksum(_with_texts(record, scrub.text))
        archive.writestr(RECORD_NAME, json.dumps(content, indent=2, ensure_ascii=False))
        archive.writestr("doctor.txt", scrub.text(_doctor()))
        for path in sorted((folder / "log").glob("rank_*")):
            archive.writestr(f"log/{path.name}", scrub.text(_log(path)))
    return target


def _doctor() -> str:
    """Return what the doctor finds here, of the machine and of each usable device that no training is known of."""
    with contextlib.redirect_stdout(io.StringIO()) as found:
        check_machine()
        for device in all_devices():
            if not device.tried and device.unavailable_reason() is None:
                check_device(device.type)
    return found.getvalue()


def _log(path: Path) -> str:
    with os_errors_as(MetricsError, f"{path}: cannot be read"):
        lines = read_whole(path).decode(errors="replace").splitlines(keepends=True)
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], f"{REMOVED} {len(lines) - MOST_LINES:,} lines\n", *lines[-half:]]
    return "".join(lines)


def _of_this_machine() -> Iterator[str]:
    """Yield the names of user, home and host."""
    yield socket.gethostname()
    with contextlib.suppress(KeyError, OSError, RuntimeError):  # a user without an entry, as in many containers
        yield str(Path.home())
        yield getpass.getuser()


def _without_texts(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration without the texts that a user may have written, and these texts."""
    declared = _declared_words(RunConfig.model_json_schema())
    removed: list[str] = []

    def kept(text: str) -> str:
        if text in declared:
            return text
        removed.append(text)
        return REMOVED

    def of_key(key: str, value: Any) -> Any:
        stays = key in _NAMES if isinstance(value, str) else key in _SECTIONS
        return value if stays else _with_texts(value, kept)

    return {key: of_key(key, value) for key, value in config.items()}, removed


def _declared_words(schema: Any) -> set[str]:
    """Return the choices and defaults that a JSON schema declares, but for folders."""
    if isinstance(schema, list):
        return set().union(*map(_declared_words, schema))
    if not isinstance(schema, dict):
        return set()
    words = [schema.get("const"), schema.get("default"), *(schema.get("enum") or ())]
    own = {word for word in words if isinstance(word, str) and "/" not in word}
    return own.union(*map(_declared_words, schema.values()))


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with `change` applied to each text in it, but for keys."""
    if isinstance(value, dict):
        return {key: _with_texts(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


class _Scrub:
    """Removes private texts, paths and addresses from texts."""

    def __init__(self, private: list[str]) -> None:
        # The longest first: a home folder holds the user's name.
        words = sorted({word for word in private if len(word) >= _SHORTEST}, key=len, reverse=True)
        self._private = re.compile("|".join(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])" for word in words))

    def text(self, text: str) -> str:
        """Return a text without what is private."""
        # A path with a space in it is known whole among the private texts, and not by its pattern.
        without = _PATH.sub(_public_part, self._private.sub(REMOVED, text))
        return _MANY.sub(REMOVED, _ADDRESS.sub(REMOVED, without))


def _public_part(path: re.Match[str]) -> str:
    """Return what a path says of the system or of a library; nothing of any other path."""
    if path[0].startswith(_OF_THE_SYSTEM):
        return path[0]
    library = _OF_LIBRARIES.match(path[0])
    return REMOVED if library is None else f"{REMOVED}/{path[0][library.end() :]}"
