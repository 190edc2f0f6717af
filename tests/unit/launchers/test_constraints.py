"""The pins of what a set-up installs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from support.repository import ROOT

OF_TORCH = ("torch", "torch-npu")
"""An image's own torch brings what it needs."""


def installed(name: str, extras: set[str], seen: dict[str, set[str]]) -> Iterator[str]:
    """Names of the installed packages that a package needs with these extras, its own first."""
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return  # of an extra that this environment lacks
    if name not in seen:
        yield name
    seen[name] = seen.get(name, set()) | extras
    for need in map(Requirement, [] if name in OF_TORCH else needs):
        wanted = normal(need.name)
        applies = any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)) if need.marker else True
        if applies and (wanted not in seen or not need.extras <= seen[wanted]):
            yield from installed(wanted, need.extras, seen)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_of_a_set_up_is_pinned() -> None:
    """Only for the running Python: some lines of constraints.txt hold for some versions."""
    lines = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    pinned = {normal(line.name) for line in lines if line.marker is None or line.marker.evaluate()}
    extras = set(metadata.metadata("efficientbench").get_all("Provides-Extra") or [])
    needed = set(installed("efficientbench", extras, {})) - {"efficientbench"}
    assert {"torch", "megatron-core", "pytest"} <= needed
    assert needed <= pinned
