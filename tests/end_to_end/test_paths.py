"""Paths in any bytes and any locale: each works, or one line refuses it before any work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command_line import TINY, command, efficientbench, environment
from support.repository import ROOT

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.config.matrix import load_matrix
from efficientbench.data_tools.tokenizing.inputs import find_inputs
from efficientbench.metrics.files import write_whole

GBK = os.fsdecode("你好".encode("gbk"))
SHOWN = r"\xc4\xe3\xba\xc3"
# Python's paths are ASCII then, and Chinese letters are bytes.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
DATA_TOOLS = [sys.executable, "-m", "efficientbench.data_tools"]


def refused(
    done: subprocess.CompletedProcess[str],
    what: str,
    remedy: str = "rename the file or folder",
    begin: str = "error: {} is not UTF-8: ",
) -> None:
    """The command ended at once with one line, which names `what` and its bytes."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(begin.format(what)), done.stderr
    assert (done.stderr.count("\n"), SHOWN in done.stderr, "你好" in done.stderr) == (1, True, True)
    assert remedy in done.stderr


def call(words: Sequence[str], cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """A command of ours in a folder, with no other variables than some."""
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize("locale", [{"LC_ALL": "C.UTF-8"}, ASCII], ids=["UTF-8", "ASCII"])
def test_names_that_are_not_utf_8_are_refused_before_any_work(tmp_path: Path, locale: dict[str, str]) -> None:
    folder = tmp_path / GBK
    words = command("run", "gqa_0.5B", "--smoke", f"output={folder}")
    refused(call(words, tmp_path, **locale), "argument 4", "give it in UTF-8")
    refused(call([*DATA_TOOLS, "verify", str(folder)], tmp_path, **locale), "argument 2", "give it in UTF-8")
    assert list(tmp_path.iterdir()) == []
    folder.mkdir()
    refused(call(words, tmp_path, **locale), "argument 4")
    refused(call(command("list"), folder, **locale), "the working directory")
    refused(call(command("list"), tmp_path, HOME=str(folder), **locale), "HOME")


def test_a_deleted_working_directory_is_reported(tmp_path: Path) -> None:
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    (tmp_path / "gone").mkdir()
    done = call(["bash", "-c", script, "gone", str(tmp_path / "gone"), *command("list")], tmp_path)
    told = "error: the working directory cannot be used (No such file or directory): go to another one\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_an_input_whose_name_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{GBK}.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match="holds a file whose name is not UTF-8, .*xc4.*: rename it"):
        find_inputs([tmp_path])


def test_half_a_character_in_a_matrix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text('sizes: {"0.5B": {"output": "\\udcc4"}}\n')
    with pytest.raises(ConfigError, match=r"matrix.yaml cannot be read: .*surrogates not allowed"):
        load_matrix(path)


def test_files_that_mention_a_non_utf_8_name_can_be_read(tmp_path: Path) -> None:
    write_whole(tmp_path / GBK / "a.json", json.dumps({"path": GBK}, ensure_ascii=False))
    assert json.loads((tmp_path / GBK / "a.json").read_bytes()) == {"path": GBK}


def made_locale(folder: Path, language: str, encoding: str) -> dict[str, str]:
    """The variables of a locale that this machine need not have."""
    name = f"{language}.{encoding}"
    if shutil.which("localedef") is None:
        pytest.skip("localedef is not installed")
    made = subprocess.run(
        ["localedef", "-i", language, "-f", encoding, folder / name], capture_output=True, check=False
    )
    if not (folder / name).is_dir():
        pytest.skip(f"{name} cannot be made: {made.stderr.decode(errors='replace')}")
    return {"LOCPATH": str(folder), "LC_ALL": name}


def test_marks_and_signs_are_replaced_in_a_locale_that_lacks_them(tmp_path: Path) -> None:
    told = efficientbench("keys", "model", expect=0, **ASCII).stdout
    assert "√" in told
    latin = made_locale(tmp_path, "en_US", "ISO-8859-1")
    assert call(command("keys", "model"), tmp_path, **latin).stdout == told


@pytest.mark.parametrize("mode", ["0", pytest.param("1", marks=pytest.mark.proof)], ids=["locale", "UTF-8 mode"])
def test_arguments_from_a_gbk_terminal_are_read_or_refused(tmp_path: Path, mode: str) -> None:
    locale = {**made_locale(tmp_path, "zh_CN", "GBK"), "PYTHONUTF8": mode}
    for letters in (GBK, "你好"):
        done = call([*DATA_TOOLS, "verify", letters], tmp_path, **locale)
        assert (done.returncode, "not UTF-8" in done.stderr) == (2, False), done.stderr
        assert done.stderr.startswith("错误：你好"), done.stderr
    # What lies there keeps its bytes.
    (tmp_path / GBK).mkdir()
    in_chinese = {"remedy": "请重命名该文件或目录", "begin": "错误：{} 不是 UTF-8："}
    refused(call([*DATA_TOOLS, "verify", GBK], tmp_path, **locale), "第 2 个参数", **in_chinese)
    done = call(command("run", "gqa_0.5B", "--smoke", f"output={GBK}"), tmp_path, **locale)
    refused(done, "第 4 个参数", **in_chinese)
    assert not (tmp_path / "你好").exists()


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["ASCII", "GBK"])
def test_chinese_paths_work_in_any_locale(tmp_path: Path, kind: str) -> None:
    """Text, tokenizer, run, report, scores, text and export, each with letters that the locale lacks in its path."""
    locale = ASCII if kind == "ASCII" else made_locale(tmp_path, "zh_CN", kind)
    folder = tmp_path / "输出 目录"
    folder.mkdir()
    lines = [json.dumps({"text": f"{number} 中文 " + "abc def " * 40}) for number in range(300)]
    (folder / "文本.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = "输出/gqa_0.5B_smoke"
    words = ["--data", "文本.jsonl", "--tokenizer", "分词", "output=输出", "data.cache=缓存"]
    for step in (
        [*DATA_TOOLS, "train-tokenizer", "文本.jsonl", "--vocab-size", "300", "--output", "分词"],
        [*DATA_TOOLS, "tokenize", "文本.jsonl", "--tokenizer", "分词", "--output", "词元/甲", "--workers", "2"],
        [*DATA_TOOLS, "inspect", "词元/甲"],
        command("plan", "gqa_0.5B", "--smoke", *TINY, *words),
        command("run", "gqa_0.5B", "--smoke", *TINY, *words, "parallel.dp=2"),
        command("report", "输出"),
        command("compare", run, run),
        command("plot", "输出"),
        command("evaluate", run, "--tasks", "loss"),
        command("generate", run, "--prompt", "中文", "--max-new-tokens", "3"),
        command("export", run, "模型"),
        command("launch", "gqa_0.5B", "--to", "torchrun", "output=输出", "--output", "脚本.sh"),
        ["bash", str(ROOT / "launchers" / "cleanup.sh"), "--dry-run", "输出"],
    ):
        done = call(step, folder, **locale)
        assert done.returncode == 0, (step, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
    record = json.loads((folder / run / "record.json").read_bytes())
    assert record["config"]["output"] == "输出"
    assert "输出" in (folder / "脚本.sh").read_text(encoding="utf-8")
    # Nothing beside it, under the letters that a library took the bytes for.
    assert {path.name for path in tmp_path.iterdir()} <= {"输出 目录", "zh_CN.GBK"}
    assert {path.name for path in folder.iterdir()} == {
        *("文本.jsonl", "分词", "词元", "输出", "缓存", "模型", "脚本.sh"),
    }


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "{long}", "--prompt", "a"],
        pytest.param(
            ["finetune", "lora_tiny", "--smoke", "--data", "{long}"],
            marks=[
                pytest.mark.proof,
                pytest.mark.skipif(sys.version_info < (3, 11), reason="fine-tuning needs Python 3.11"),
            ],
        ),
        *(
            pytest.param(each, marks=pytest.mark.proof)
            for each in (
                ["evaluate", "{long}", "--tasks", "loss"],
                ["chat", "{long}"],
                ["speedrun", "--short", "--dry-run", "--data", "{long}"],
                ["speedrun", "--short", "--dry-run", "--task-data", "{long}"],
                ["finetune", "merge", "{long}", "merged"],
                ["run", "gqa_0.5B", "--smoke", "output={long}"],
                ["report", "{long}"],
            )
        ),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_path_that_the_system_refuses_is_reported(tmp_path: Path, words: list[str]) -> None:
    """A path that the user may not read is such a path; a name of 300 letters is refused even to root."""
    long = "x" * 300
    done = call(command(*(word.format(long=long) for word in words)), tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert long in done.stderr


def test_clean_up_names_a_path_that_is_no_folder(tmp_path: Path) -> None:
    long = str(tmp_path / ("x" * 300))
    done = call(["bash", str(ROOT / "launchers" / "cleanup.sh"), long], tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {long} is no folder\n")


def test_clean_up_prints_any_folder(tmp_path: Path) -> None:
    (tmp_path / GBK).mkdir()
    strict = made_locale(tmp_path, "en_US", "UTF-8")
    done = call(["bash", str(ROOT / "launchers" / "cleanup.sh"), "--dry-run", GBK], tmp_path, **strict)
    assert (done.returncode, done.stdout) == (0, "no process of a run below \\udcc4\\udce3\\udcba\\udcc3 is left\n")


@pytest.mark.proof
def test_a_report_over_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    efficientbench("run", "gqa_0.5B", "--smoke", *TINY, f"output={tmp_path / 'runs'}", expect=0)
    (tmp_path / "runs" / "gqa_0.5B_smoke").rename(tmp_path / "runs" / GBK)
    for words in (["report"], ["report", "--paper"], ["plot"]):
        done = efficientbench(*words, str(tmp_path / "runs"), expect=0)
        assert "Traceback" not in done.stderr
