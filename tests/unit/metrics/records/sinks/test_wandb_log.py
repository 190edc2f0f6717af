"""What Weights & Biases gets, by its own package without a network, and what becomes of a run when that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import environment
from support.wandb_file import offline_runs

BEGIN = """
import sys
from pathlib import Path
from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.sinks.wandb_log import WandbLog

log = WandbLog("trial", Path(sys.argv[1]), "gqa_1.5B", {"training": {"steps": 2}})
"""
SEND = """
log.scalars("step", 1, {"train/loss": 2.5, "energy/power_w": None})
log.scalars("tokens", 64, {"by_tokens/train_loss": 2.5})
log.scalars("step", 2, {"train/loss": 2.25})
"""
KILL = """
import time
import psutil

for child in psutil.Process().children(recursive=True):
    child.kill()
    child.wait()
deadline_s = time.monotonic() + 60
while log._run is not None and time.monotonic() < deadline_s:
    log.scalars("step", 3, {"train/loss": 2.0})
"""
END = """
log.figures({"mfu": 0.4, "energy_j": None})
"""
REFUSED = f"""
try:
    {BEGIN.strip().replace(chr(10), chr(10) + "    ")}
except MetricsError as error:
    print(error)
"""


def done(program: str, folder: Path, **changes: str) -> str:
    """Return what a program prints that sends from a folder, and that must end by itself."""
    mode = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", **changes}
    command = [sys.executable, "-c", program, str(folder)]
    ended = subprocess.run(command, env=environment(**mode), capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.proof
def test_scalars_axes_and_figures_reach_wandb(tmp_path: Path) -> None:
    shown = done(BEGIN + SEND + END + "log.close()", tmp_path)
    [sent] = offline_runs(tmp_path)
    assert (sent.project, sent.name, sent.group) == ("trial", "gqa_1.5B", "gqa_1.5B")
    assert sent.settings["training"] == {"steps": 2}
    assert sent.scalars("train/loss") == [(1, 2.5), (2, 2.25)]
    assert sent.scalars("by_tokens/train_loss", "tokens") == [(64, 2.5)]
    assert not sent.scalars("energy/power_w")
    assert (sent.axes["train/loss"], sent.axes["by_tokens/train_loss"]) == ("step", "tokens")
    assert sent.summary["mfu"] == 0.4
    assert "energy_j" not in sent.summary
    assert sent.exit_code == 0
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    assert shown == f"Weights & Biases: wandb sync {folder}\n"


@pytest.mark.proof
def test_a_second_run_of_a_process_is_sent_beside_the_first(tmp_path: Path) -> None:
    second = 'WandbLog("other", Path(sys.argv[1]), "ours", {}).close()\n'
    done(BEGIN + second + SEND + END + "log.close()", tmp_path)
    sent = {each.project: each for each in offline_runs(tmp_path)}
    assert sorted(sent) == ["other", "trial"]
    assert sent["trial"].scalars("train/loss") == [(1, 2.5), (2, 2.25)]


@pytest.mark.proof
def test_a_run_without_figures_counts_as_failed(tmp_path: Path) -> None:
    done(BEGIN + SEND + "log.close()", tmp_path)
    assert offline_runs(tmp_path)[0].exit_code == 1


@pytest.mark.proof
def test_a_run_continues_after_the_sending_process_is_killed(tmp_path: Path) -> None:
    shown = done(BEGIN + SEND + KILL + END + "log.close()\nprint('trained')", tmp_path)
    first, warning, last = shown.splitlines()
    assert first.startswith("Weights & Biases: ")
    assert warning.startswith("warning: Weights & Biases gets no more of this run: ")
    assert last == "trained"


@pytest.mark.proof
def test_a_user_who_is_not_logged_in_is_told_what_to_do(tmp_path: Path) -> None:
    home = {"WANDB_MODE": "online", "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_API_KEY": ""}
    shown = done(REFUSED, tmp_path, **home)
    assert shown.startswith("wandb: Weights & Biases takes no run: ")
    assert shown.endswith("; WANDB_MODE=offline keeps it here for `wandb sync`\n")


def test_a_missing_wandb_package_is_reported_with_the_install_command(tmp_path: Path) -> None:
    shown = done(f"import sys\nsys.modules['wandb'] = None\n{REFUSED.strip()}", tmp_path)
    assert shown == "wandb: Weights & Biases is not installed: pip install 'efficientbench[wandb]'\n"


def test_a_wrong_environment_variable_is_named(tmp_path: Path) -> None:
    shown = done(REFUSED, tmp_path, WANDB_MODE="offlin")
    assert shown.startswith(
        "wandb: a setting is wrong, from an environment variable WANDB_… or wandb's own file: mode: "
    )
    assert shown.count("\n") == 1


def test_a_folder_named_wandb_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    program = (
        "import sys\n"
        "from efficientbench.basics.errors import MetricsError\n"
        "from efficientbench.metrics.records.sinks.wandb_log import check_wandb\n"
        "sys.path = [sys.argv[1]]\n"
        "try:\n    check_wandb('trial')\nexcept MetricsError as error:\n    print(error)\n"
    )
    assert "is not installed" in done(program, tmp_path)
