"""A package of variants, a meter and methods outside this project, as their user would write them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from efficientbench.architecture import registry

FILES = Path(__file__).parent / "trial_variants"
PACKAGE = "my_package"
OTHERS = (PACKAGE, "hostile", "my_meter", "my_method")


def lay_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package into a folder, and the folder on the import path of this process and of those it starts."""
    shutil.copytree(FILES, folder / PACKAGE)
    for name in ("meter", "method"):
        shutil.copy(FILES.parent / f"trial_{name}.py", folder / f"my_{name}.py")
    (folder / "hostile.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] in OTHERS]:
        # Of another test's folder.
        monkeypatch.delitem(sys.modules, name)
    registry._code.cache_clear()


def install(folder: Path, group: str, name: str, place: str) -> None:
    """Write what pip writes for a package in `folder` whose entry point `name` of a group is `package.module:NAME`."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")
