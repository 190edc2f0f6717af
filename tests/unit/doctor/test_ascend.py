"""Checks of an Ascend machine's driver, CANN, torch and HCCL, on a machine that has none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from replicas.ascend_machine import ROOT, fake_npu_smi, install_cann
from support.command_line import efficientbench, environment

from efficientbench.devices.cpu import CPU
from efficientbench.devices.npu import CANN_HOMES, NPU
from efficientbench.doctor.ascend import ascend_checks, paired
from efficientbench.doctor.check import Check
from efficientbench.doctor.step import step_checks

OUTPUTS = yaml.safe_load((ROOT / "tests" / "replicas" / "npu_smi_outputs.yaml").read_text(encoding="utf-8"))
TABLES = {entry["what"]: entry["text"] for entry in OUTPUTS["tables"]}


def npu_smi_findings(monkeypatch: pytest.MonkeyPatch, folder: Path, table: str, status: int = 0) -> list[Check]:
    fake_npu_smi(folder, table, status)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return [check for check in ascend_checks({}) if check.name in ("npu-smi", "chips")]


def test_a_healthy_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (check,) = npu_smi_findings(monkeypatch, tmp_path, TABLES["910B4-1 (A2)"])
    assert check == Check("npu-smi", True, "2 × 910B4-1 (npu-smi 25.2.0, driver 25.2.0)")


def test_an_ill_npu_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (check,) = npu_smi_findings(monkeypatch, tmp_path, TABLES["910B4 (A2), in use, the numbers touch the slash"])
    assert not check.passed
    assert check.remedy == "NPU 1 healthy again, which is 'Alarm'"


def test_a_310p_is_for_inference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, chips = npu_smi_findings(monkeypatch, tmp_path, TABLES["310P3 (300I Duo), no power, DDR"])
    assert not chips.passed
    assert "made for inference" in chips.result


def test_a_device_that_another_container_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (check,) = npu_smi_findings(monkeypatch, tmp_path, TABLES["a device in use"], status=1)
    assert not check.passed
    assert check.result.endswith("because the device is used. ret is -8020")
    assert check.remedy == "another container holds the device"


@pytest.mark.parametrize(
    ("torch", "torch_npu", "together"),
    [
        ("2.13.0", "2.13.0", True),
        ("2.6.0+cpu", "2.6.0", True),
        ("2.6.0", "2.6.0.post3", True),
        ("2.6.0", "2.6.0rc1", True),
        ("2.6.0", "2.5.1.post2", False),
        ("2.7.1", "2.7.0", False),
        ("2.13.0", "git", False),
    ],
)
def test_torch_and_torch_npu_are_of_one_release(torch: str, torch_npu: str, together: bool) -> None:
    assert paired(torch, torch_npu) == together


def test_cann_is_among_the_versions_that_a_record_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(__version__="2.6.0"))
    for name in CANN_HOMES:
        monkeypatch.delenv(name, raising=False)
    assert "CANN" not in NPU().versions()
    monkeypatch.setenv(CANN_HOMES[-1], str(install_cann(tmp_path / "Ascend")))
    assert NPU().versions()["CANN"] == "8.2.RC1"


def test_cann_is_found_by_its_environment(tmp_path: Path) -> None:
    home = install_cann(tmp_path / "Ascend")
    by_name = {check.name: check for check in ascend_checks({"ASCEND_HOME_PATH": str(home)})}
    assert by_name["CANN"] == Check("CANN", True, f"8.2.RC1 in {home}")
    shutil.rmtree(home)
    by_name = {check.name: check for check in ascend_checks({"ASCEND_HOME_PATH": str(home)})}
    assert by_name["CANN"].result == f"{home} is no folder any more"


def test_a_missing_hccl_is_a_failure() -> None:
    (check,) = [check for check in ascend_checks({}) if check.name == "HCCL"]
    if check.passed:
        pytest.skip("this machine has HCCL")
    assert "libhccl.so cannot be loaded" in check.result


@pytest.mark.proof
def test_a_step_on_the_cpu_learns_and_a_wrong_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = step_checks(CPU())
    assert check.passed
    assert check.result.startswith("bf16: loss ")
    answer = '{"loss": 7.1, "next_loss": 7.0, "wanted": 6.24, "free_bytes": 0, "total_bytes": 0}\n'
    done = subprocess.CompletedProcess([], 0, f"noise of a library\n{answer}", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    (check,) = step_checks(CPU())
    assert not check.passed
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], -11, "", "boom\n"))
    (check,) = step_checks(CPU())
    assert check.result == "the bf16 step failed: boom"


@pytest.mark.proof
def test_a_step_on_the_simulated_npu_has_the_cpus_loss() -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "replicas" / "simulated_npu")])
    command = [sys.executable, "-m", "efficientbench.doctor.step", "npu", "0", "bf16"]
    done = subprocess.run(
        command, env=environment(PYTHONPATH=paths), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    step = json.loads(done.stdout.splitlines()[-1])
    assert step["loss"] == pytest.approx(step["wanted"], rel=1e-3)
    assert step["next_loss"] < step["loss"]


def test_the_doctor_refuses_a_machine_without_npus() -> None:
    if Path("/dev/davinci0").exists():
        pytest.skip("this machine has an NPU")
    command = [sys.executable, str(ROOT / "launchers" / "check_npu.py")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")
    assert "no device file /dev/davinci0 on this machine" in done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("npu cannot be trained on here: see ")
    assert "HCCL" in last
    wrong = efficientbench("doctor", "--device", "npux")
    assert wrong.returncode == 2
    assert "did you mean npu?" in wrong.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons look into the working directory first")
def test_the_check_is_ours_wherever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "__init__.py").touch()
    command = [sys.executable, str(ROOT / "launchers" / "check_npu.py"), "--help"]
    ours = {name: value for name, value in environment().items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=ours, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--device" in done.stdout


@pytest.mark.parametrize(("locale", "told"), [("C.UTF-8", "error: the Python"), ("zh_CN.UTF-8", "错误：尚未")])
def test_a_machine_without_set_up_is_told_so_in_its_language(locale: str, told: str, tmp_path: Path) -> None:
    # Its interpreter alone, without the packages of this environment.
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    alone = {"PATH": os.environ["PATH"], "LANG": locale, "PYTHONUTF8": "1"}
    if not subprocess.run([python, "-c", "import typer"], env=alone, capture_output=True, check=False).returncode:
        pytest.skip("the interpreter itself has the packages")
    copy = tmp_path / "launchers" / "check_npu.py"
    copy.parent.mkdir()
    shutil.copy(ROOT / "launchers" / "check_npu.py", copy)
    done = subprocess.run([python, copy], env=alone, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(told)
