"""A machine that looks like one with Ascend NPUs to shell scripts: CANN's files, device files, npu-smi."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from support.repository import ROOT

# As CANN's own: it reads variables that may be unset, prepends, and ends with a test that fails.
SET_ENV = """\
export ASCEND_TOOLKIT_HOME={home}
export ASCEND_HOME_PATH={home}
export LD_LIBRARY_PATH=$ASCEND_TOOLKIT_HOME/lib64:$ASCEND_TOOLKIT_HOME/lib64/plugin:$LD_LIBRARY_PATH
export PYTHONPATH=$ASCEND_TOOLKIT_HOME/python/site-packages:$PYTHONPATH
[ -n "$NOT_SET_ANYWHERE" ]
"""


def install_cann(root: Path, folder: str = "ascend-toolkit", version: str = "8.2.RC1") -> Path:
    """CANN below `root`, as its installer lays it out; returns the toolkit's folder."""
    home = root / folder / "latest" if folder == "ascend-toolkit" else root / folder
    (home / "lib64" / "plugin").mkdir(parents=True)
    (home / "version.cfg").write_text(f"toolkit_running_version=[{version}:{version}]\n")
    (root / folder / "set_env.sh").write_text(SET_ENV.format(home=home))
    return home


def executable(path: Path, text: str) -> None:
    """A script that can be called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def fake_npu_smi(folder: Path, table: str, status: int = 0) -> None:
    """An npu-smi that prints `table` for `info`."""
    (folder / "table").write_text(table)
    executable(folder / "npu-smi", f'#!/bin/sh\n[ "$*" = info ] && cat "{folder}/table"\nexit {status}\n')


def clone_with_environment(folder: Path) -> Path:
    """The launchers with a finished .venv whose programs write down how they are called, in `calls`."""
    shutil.copytree(ROOT / "launchers", folder / "launchers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    tools = folder / ".venv" / "bin"
    for name in ("python", "python3", "efficientbench"):
        executable(tools / name, f"#!/bin/bash\nprintf '%s\\n' \"{name} $*\" >>'{folder}/calls'\n")
    mark_complete(folder, "npu")
    return folder


def mark_complete(clone: Path, extras: str) -> None:
    """Mark a clone's .venv as made and finished by bootstrap.sh with these extras."""
    (clone / ".venv" / ".efficientbench-made-here").touch()
    installed = hashlib.sha256((clone / "setup.py").read_bytes() + (clone / "constraints.txt").read_bytes())
    stamp = (installed.hexdigest(), str(clone.resolve()), "", extras)
    (clone / ".venv" / ".efficientbench-complete").write_text("".join(f"{line}\n" for line in stamp))


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """No variable of this process but the PATH, so that no CANN of this machine is seen."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "ASCEND_DEVICE_FILES": str(home / "davinci*"), **more}
