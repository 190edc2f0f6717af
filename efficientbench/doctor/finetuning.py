"""Check that fine-tuning's libraries are installed and fit each other: an image brings its own torch and others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

from efficientbench.doctor.check import Check
from efficientbench.launchers.files import FROM_CLONE
from efficientbench.metrics.records.environment import version_of

EXTRA = "finetune"
INSTALL = f"bash launchers/bootstrap.sh {EXTRA}" if FROM_CLONE else f"pip install 'efficientbench[train,{EXTRA}]'"
SHARED = ("torch", "transformers", "accelerate", "datasets")
"""Libraries whose versions the other libraries restrict."""


def finetuning_check(python: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """Return the check of `efficientbench finetune`: the versions of its libraries, or why it cannot train."""
    if python < (3, 11):
        return Check(EXTRA, False, f"needs Python 3.11 or newer, as TRL does; this is {'.'.join(map(str, python))}")
    wanted = _of_extra(f"{python[0]}.{python[1]}")
    if not wanted:
        return Check(EXTRA, True, "the package is not installed, so what its extra needs is not known here")
    versions = {each.name: version_of(each.name) for each in wanted}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Check(EXTRA, False, f"lacks {', '.join(missing)}", INSTALL)
    problems = [f"{each.name} {each.specifier}, not {versions[each.name]}" for each in wanted if not _serves(each)]
    problems += [problem for name in versions for problem in _unserved(name)]
    if problems:
        return Check(EXTRA, False, f"needs {'; '.join(problems)}", INSTALL)
    shown = versions | {name: version_of(name) for name in ("transformers", "torch")}
    return Check(EXTRA, True, ", ".join(f"{name} {version}" for name, version in shown.items()))


def _of_extra(python_version: str) -> list[Requirement]:
    """Return the requirements that the extra adds on this Python version; none where the package is not installed."""
    try:
        lines = metadata.requires("efficientbench") or []
    except metadata.PackageNotFoundError:
        return []
    with_extra, without = ({"python_version": python_version, "extra": extra} for extra in (EXTRA, ""))
    return [
        each
        for each in map(Requirement, lines)
        if each.marker is not None and each.marker.evaluate(with_extra) and not each.marker.evaluate(without)
    ]


def _unserved(name: str) -> Iterator[str]:
    """Yield a problem for each library that a package needs in another version than the installed one."""
    for each in map(Requirement, metadata.requires(name) or []):
        applies = each.marker is None or each.marker.evaluate({"extra": ""})
        if applies and each.name in SHARED and not _serves(each):
            here = version_of(each.name)
            ending = f"not {here}" if here else "which is not installed"
            yield f"{each.name} {each.specifier}".rstrip() + f" for {name}, {ending}"


def _serves(wanted: Requirement) -> bool:
    version = version_of(wanted.name)
    return version is not None and wanted.specifier.contains(version, prereleases=True)
