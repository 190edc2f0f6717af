"""The shell scripts of data_tools, in a folder whose environment is finished: they find it, and pass all words on."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.repository import ROOT

SCRIPTS = {"download_fineweb_data.sh": "download", "prepare_fineweb_dataset.sh": "prepare"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_passes_all_its_arguments_to_its_command(tmp_path: Path, script: str) -> None:
    clone = tmp_path / "a clone"
    for name in (f"data_tools/{script}", "launchers/bootstrap.sh", "setup.py", "constraints.txt"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    tool = clone / ".venv" / "bin" / "efficientbench-data"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    tool.chmod(0o755)
    tool.with_name("python").symlink_to("efficientbench-data")
    (clone / ".venv" / ".efficientbench-made-here").touch()
    installed = hashlib.sha256((clone / "setup.py").read_bytes() + (clone / "constraints.txt").read_bytes())
    stamp = (installed.hexdigest(), str(clone), "", "")
    (clone / ".venv" / ".efficientbench-complete").write_text("".join(f"{line}\n" for line in stamp))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    words = ["owner/name", "--num-files", "2", "--output", "a folder"]
    command = ["bash", str(clone / "data_tools" / script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [SCRIPTS[script], *words]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_no_set_up_and_speaks_the_users_language(tmp_path: Path, script: str) -> None:
    clone = tmp_path / "clone"
    for name in (f"data_tools/{script}", "launchers/environment/ascend_env.sh"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for locale, word in (("C.UTF-8", "continues"), ("zh_CN.UTF-8", "继续")):
        command = ["bash", str(clone / "data_tools" / script), "--num-files", "2", "--help"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": locale}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"bash data_tools/{script} [DATASET]" in done.stdout
        assert f"efficientbench-data {SCRIPTS[script]} --help" in done.stdout
        assert word in done.stdout
        assert "pipefail" not in done.stdout
