"""The scripts in experiments/ follow from the matrix, and pass their arguments on unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.matrix import load_matrix
from efficientbench.config.scripts import check_scripts, write_scripts
from efficientbench.finetuning.load import tuning_scripts


def test_scripts_are_current() -> None:
    check_scripts()


def test_one_script_for_each_run(tmp_path: Path) -> None:
    write_scripts(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")} == {
        f"{run.suite}/run_{run.name}.sh" for run in load_matrix().all_runs
    }
    check_scripts(tmp_path)


def test_outdated_scripts_are_named_and_rewritten(tmp_path: Path) -> None:
    write_scripts(tmp_path)
    folder = tmp_path / "attention_variants"
    (folder / "run_gqa_3B.sh").unlink()
    (folder / "run_mqa_3B.sh").write_text("exit 1\n")
    (folder / "run_mla_3B.sh").chmod(0o644)
    (folder / "run_old_3B.sh").write_text("")
    with pytest.raises(ConfigError) as caught:
        check_scripts(tmp_path)
    for problem in (
        "gqa_3B.sh is missing",
        "mqa_3B.sh is not what",
        "mla_3B.sh is not executable",
        "old_3B.sh is of no",
    ):
        assert problem in str(caught.value)
    write_scripts(tmp_path)
    check_scripts(tmp_path)


def test_arguments_reach_the_launcher_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "a folder; with $(odd) 'name'"
    write_scripts(root / "experiments", tuning_scripts())
    launcher = root / "launchers" / "run_named.sh"
    launcher.parent.mkdir()
    launcher.write_text('printf "%s\\n" "$@"\n')
    arguments = ["dlc", "--smoke", "data.path=a b $(c) `d` *", ""]
    for script, words in (
        ("moe_variants/run_dense_3B.sh", ["dense_3B"]),
        ("finetuning/run_dora_7B.sh", ["finetune", "dora_7B"]),
    ):
        done = subprocess.run(
            [root / "experiments" / script, *arguments], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert done.stdout.split("\n")[:-1] == [*words, *arguments]
