"""The scripts for Ascend on made-up machines: they find CANN, say what is missing, change what they were asked to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from replicas.ascend_machine import ROOT, clean_environment, clone_with_environment, executable, install_cann

FIX = ROOT / "launchers" / "fix_ascend_env.sh"
SCRIPTS = sorted((ROOT / "launchers").glob("*.sh"))


def run(*command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def bash(command: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("bash", "-c", command, "bash", *arguments, environment=environment)


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_a_script_parses(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


def test_user_scripts_are_executable() -> None:
    called = ("setup_ascend.sh", "fix_ascend_env.sh", "cleanup.sh", "check_npu.py")
    for name in (*called, "quick_fineweb_test.sh", "train_with_fineweb.sh", "speedrun.sh", "speedrun_npu.sh"):
        assert os.access(ROOT / "launchers" / name, os.X_OK), name


@pytest.mark.proof
def test_scripts_pass_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    command = [shellcheck, "--external-sources", *map(str, SCRIPTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


SOURCE = 'set -euo pipefail; source "$1/launchers/environment/ascend_env.sh"; ascend_source; ascend_source; '
SHOW = 'printf "%s\\n" "$ASCEND_TOOLKIT_HOME" "$LD_LIBRARY_PATH" "$-"'


@pytest.mark.parametrize("place", ["Ascend", "named"])
def test_cann_is_found_and_sourced_once(tmp_path: Path, place: str) -> None:
    home = install_cann(tmp_path / place)
    more = {"ASCEND_INSTALL_PATH": str(tmp_path / place)} if place == "named" else {}
    done = bash(SOURCE + SHOW, clean_environment(tmp_path, **more), str(ROOT))
    assert done.returncode == 0, done.stderr
    toolkit, libraries, options = done.stdout.splitlines()
    assert toolkit == str(home)
    assert libraries.count(f"{home}/lib64:") == 1
    assert {"e", "u"} <= set(options), "the caller's options are as before"


def test_the_newest_cann_is_used_and_the_drivers_libraries_are_added(tmp_path: Path) -> None:
    for version in ("8.5.0", "9.0.0", "10.0.0"):
        install_cann(tmp_path / "Ascend", f"cann-{version}", version)
    driver = tmp_path / "driver" / "lib64" / "driver"
    driver.mkdir(parents=True)
    environment = clean_environment(tmp_path, ASCEND_DRIVER_PATH=str(tmp_path / "driver"))
    done = bash(SOURCE + SHOW, environment, str(ROOT))
    assert done.stdout.splitlines()[0].endswith("cann-10.0.0")
    assert done.stdout.splitlines()[1].endswith(f":{driver}")


def test_a_missing_cann_is_reported_with_the_searched_folders(tmp_path: Path) -> None:
    done = bash(
        'source "$1/launchers/environment/ascend_env.sh"; ascend_source', clean_environment(tmp_path), str(ROOT)
    )
    if Path("/usr/local/Ascend").exists() or Path("/opt/Ascend").exists():
        pytest.skip("this machine has an Ascend folder")
    assert done.returncode == 1
    assert "CANN was not found in ASCEND_INSTALL_PATH, /usr/local/Ascend, ~/Ascend or /opt/Ascend" in done.stderr


def test_an_incomplete_cann_is_refused(tmp_path: Path) -> None:
    executable(tmp_path / "Ascend" / "ascend-toolkit" / "set_env.sh", "false\n")
    done = bash(
        'source "$1/launchers/environment/ascend_env.sh"; ascend_source', clean_environment(tmp_path), str(ROOT)
    )
    assert done.returncode == 1
    assert "this CANN is not installed completely" in done.stderr


@pytest.mark.parametrize("sourced", [False, True])
def test_setup_sources_cann_makes_the_environment_and_checks(tmp_path: Path, sourced: bool) -> None:
    clone = clone_with_environment(tmp_path / "a clone")
    home = install_cann(tmp_path / "Ascend")
    script = f"{clone}/launchers/setup_ascend.sh"
    command = 'source "$1"; echo "$ASCEND_TOOLKIT_HOME"; type -p efficientbench' if sourced else 'bash "$1"'
    for _ in range(2):
        done = bash(command, clean_environment(tmp_path), script)
        assert done.returncode == 0, done.stderr
        assert f"CANN: {home}" in done.stdout
        if sourced:
            assert done.stdout.splitlines()[-2:] == [str(home), f"{clone}/.venv/bin/efficientbench"]
    calls = (clone / "calls").read_text().splitlines()
    assert calls.count("efficientbench doctor --device npu") == 2


def fix(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run("bash", str(FIX), *arguments, environment=clean_environment(home, **more))


def test_fix_without_apply_reports_and_changes_nothing(tmp_path: Path) -> None:
    install_cann(tmp_path / "Ascend")
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'\n")
    done = fix(tmp_path, ASCEND_LAUNCH_BLOCKING="1")
    assert done.returncode == 1
    assert "CANN's environment is not set" in done.stdout
    assert "ASCEND_LAUNCH_BLOCKING=1: the host waits for every operator" in done.stdout
    assert "nothing was changed; --apply writes the 2 lines above" in done.stdout
    assert (tmp_path / ".bashrc").read_text() == "alias ll='ls -l'\n"
    assert fix(tmp_path, "--frobnicate").returncode == 2


def test_fix_writes_its_block_once_and_the_next_shell_has_cann(tmp_path: Path) -> None:
    home = install_cann(tmp_path / "Ascend")
    bashrc = tmp_path / ".bashrc"
    bashrc.write_text("alias ll='ls -l'\n")
    bashrc.chmod(0o600)
    wrong = {"RANK_TABLE_FILE": str(tmp_path / "absent"), "ASCEND_GLOBAL_LOG_LEVEL": "1", "HCCL_WHITELIST_DISABLE": "0"}
    fix(tmp_path, "--apply", **wrong)
    first = bashrc.read_text()
    assert first.startswith("alias ll='ls -l'\n# >>> efficientbench: Ascend >>>\n")
    # Called with what it mended still wrong, and called with all of it mended: the same file.
    fix(tmp_path, "--apply", **wrong)
    assert bashrc.read_text() == first
    mended = bash('source "$HOME/.bashrc"; env', clean_environment(tmp_path, **wrong)).stdout
    assert f"ASCEND_TOOLKIT_HOME={home}\n" in mended
    assert "ASCEND_GLOBAL_LOG_LEVEL=3\n" in mended
    assert "RANK_TABLE_FILE=" not in mended
    assert "HCCL_WHITELIST_DISABLE=" not in mended
    fix(
        tmp_path,
        "--apply",
        **dict(line.split("=", 1) for line in mended.splitlines() if line.startswith(("ASCEND", "LD_"))),
    )
    assert bashrc.read_text() == first
    assert bashrc.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if "efficientbench" in path.name] == []


def test_fix_quotes_the_checkouts_path(tmp_path: Path) -> None:
    home = install_cann(tmp_path / "Ascend")
    clone = clone_with_environment(tmp_path / "it's $HOME & `more`")
    run("bash", f"{clone}/launchers/fix_ascend_env.sh", "--apply", environment=clean_environment(tmp_path))
    done = bash('source "$HOME/.bashrc"; env', clean_environment(tmp_path))
    assert f"ASCEND_TOOLKIT_HOME={home}\n" in done.stdout, done.stderr


@pytest.mark.parametrize("marks", ["# >>> {} >>>\n", "# <<< {} <<<\n", "# >>> {0} >>>\n# >>> {0} >>>\n# <<< {0} <<<\n"])
def test_fix_writes_nothing_where_its_block_is_damaged(tmp_path: Path, marks: str) -> None:
    bashrc = tmp_path / ".bashrc"
    content = marks.format("efficientbench: Ascend") + "export MINE=1\n"
    bashrc.write_text(content)
    done = fix(tmp_path, "--apply", ASCEND_LAUNCH_BLOCKING="1")
    assert done.returncode == 2
    assert "do not come in pairs: nothing was written" in done.stderr
    assert bashrc.read_text() == content


def test_fix_names_a_missing_folder(tmp_path: Path) -> None:
    done = fix(tmp_path, "--apply", "--file", "nowhere/rc", ASCEND_LAUNCH_BLOCKING="1")
    assert done.returncode == 2
    assert "--file nowhere/rc: its folder is not there" in done.stderr


def test_cann_is_searched_for_without_home(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "ASCEND_DEVICE_FILES": str(tmp_path / "absent*")}
    done = run("bash", str(FIX), environment=environment)
    assert "unbound variable" not in done.stderr
    assert "no NPU: no file /dev/davinci0" in done.stdout


def test_fix_names_missing_npu_device_files(tmp_path: Path) -> None:
    done = fix(tmp_path)
    assert done.returncode == 1
    assert "no NPU: no file /dev/davinci0" in done.stdout
    assert "/dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc" in done.stdout
    (tmp_path / "davinci0").touch()
    assert "the NPUs can be opened" in fix(tmp_path).stdout


def test_scripts_speak_chinese_in_a_chinese_locale(tmp_path: Path) -> None:
    han = re.compile("[\u4e00-\u9fff]")
    wrong = {"ASCEND_LAUNCH_BLOCKING": "1", "RANK_TABLE_FILE": "/no/such", "TASK_QUEUE_ENABLE": "0"}
    found = run("bash", str(FIX), environment=clean_environment(tmp_path, LANG="zh_CN.UTF-8", **wrong))
    assert (found.returncode, found.stderr) == (1, "")
    marked = [line for line in found.stdout.splitlines() if line.startswith(("✗", "✓", "·"))]
    assert len(marked) > 5
    assert [line for line in marked if not han.search(line)] == []
    assert "将写入：unset TASK_QUEUE_ENABLE" in found.stdout
    english = run("bash", str(FIX), environment=clean_environment(tmp_path, LC_ALL="C", LANG="zh_CN.UTF-8", **wrong))
    assert (len(english.stdout.splitlines()), han.search(english.stdout)) == (len(found.stdout.splitlines()), None)
    by_name = ("run_named.sh", "run_named.sh finetune", "speedrun.sh", "speedrun_npu.sh", "train_with_fineweb.sh")
    for script in ("fix_ascend_env.sh", "setup_ascend.sh", "quick_fineweb_test.sh", *by_name):
        environment = clean_environment(tmp_path, LANG="zh_CN.UTF-8")
        name, *words = script.split()
        asked = run("bash", str(ROOT / "launchers" / name), *words, "--help", environment=environment)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert all(text in asked.stdout for text in (f"launchers/{script}", "环境" if "ascend" in script else "用法"))
    for each in (ROOT / "launchers").glob("*.sh"):
        asked = run("bash", str(each), "--help", environment=clean_environment(tmp_path, LANG="zh_CN.UTF-8"))
        assert (asked.returncode, asked.stderr) == (0, "")
        assert f"launchers/{each.name}" in asked.stdout
        assert han.search(asked.stdout), each
