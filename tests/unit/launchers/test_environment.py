"""What ranks find in their environment, and what the launchers load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.repository import ROOT

from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.processes.launch import rank_environment
from efficientbench.launchers.processes.worker_process import module_command


def test_cores_are_divided_among_ranks_unless_set() -> None:
    cluster = Cluster(1, 0, "127.0.0.1", 1)
    cores = len(os.sched_getaffinity(0))
    assert rank_environment(cluster, 0, cores, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" not in rank_environment(cluster, 0, 1, {})
    assert rank_environment(cluster, 0, 2, {})["OMP_NUM_THREADS"] == str(max(1, cores // 2))


def test_ranks_under_torchrun_have_a_separate_store() -> None:
    environment = rank_environment(Cluster(2, 1, "a", 7), 0, 1, {"TORCHELASTIC_USE_AGENT_STORE": "True", "KEPT": "1"})
    assert "TORCHELASTIC_USE_AGENT_STORE" not in environment
    assert (environment["KEPT"], environment["RANK"], environment["MASTER_PORT"]) == ("1", "1", "7")


def test_a_folder_in_the_working_directory_hides_no_package(tmp_path: Path) -> None:
    for name in ("metrics", "launchers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')")
    (tmp_path / "site" / "probe").mkdir(parents=True)
    (tmp_path / "site" / "probe" / "__main__.py").write_text(
        "import sys, efficientbench.basics.errors; print(sys.argv[1:])"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
    command = module_command("probe", "a", "b")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['a', 'b']\n", "")


def test_the_launchers_do_not_import_torch() -> None:
    program = """
import sys
import efficientbench.launchers.network.preflight
import efficientbench.launchers.processes.launch
print('torch' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
