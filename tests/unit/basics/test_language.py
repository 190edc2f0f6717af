"""Help and checks in Chinese: nothing that commands say in help, and the doctor in its checks, lacks its Chinese."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from support.command_line import efficientbench
from support.repository import ROOT
from typer.testing import CliRunner

from efficientbench.basics.foreign import parse_own_yaml
from efficientbench.basics.language import TABLES, in_chinese, in_users_language, is_chinese
from efficientbench.basics.program import translate_help
from efficientbench.cli.app import app
from efficientbench.data_tools.cli import app as data_app
from efficientbench.devices.quantized import FP8_CPU
from efficientbench.doctor.check import Check, print_checks
from efficientbench.launchers.processes.supervision import print_stderr

HAN = re.compile("[\u4e00-\u9fff]")
SAID = ("Check", "print_checks", "_print_end")
MISTAKES = (
    *("BadParameter", "ConfigError", "DataError", "DeviceError", "LaunchError", "MetricsError", "TrainingError"),
    "ValueError",
)
TRANSLATED = (
    *("efficientbench/config", "efficientbench/devices", "efficientbench/planning", "efficientbench/running"),
    *("efficientbench/sweep", "efficientbench/finetuning", "efficientbench/cli", "efficientbench/evaluation"),
    *("metrics", "data_tools", "launchers"),
)
"""Folders whose mistakes have all their Chinese."""
UNTRANSLATED = 4
"""Most mistakes elsewhere without Chinese: parts of another mistake, which one word or two would match anywhere."""


def helps(command: Any) -> Iterator[str]:
    """Yield the help of a command, of its parameters, and of its subcommands."""
    yield command.help
    yield from (found for each in command.params if (found := getattr(each, "help", None)))
    for each in getattr(command, "commands", {}).values():
        yield from helps(each)


@pytest.mark.parametrize("command", [app, data_app], ids=["efficientbench", "data_tools"])
def test_all_help_has_a_chinese_translation(command: typer.Typer) -> None:
    texts = dict.fromkeys(helps(typer.main.get_command(command)))
    assert len(texts) > 30
    # Each part of a text that is known by its parts, too, but for single words and numbers.
    parts = [part.strip() for text in texts for part in in_chinese(text).split("；")]
    assert [part for part in parts if " " in part and not HAN.search(part)] == []


def test_translation_makes_help_chinese_and_changes_no_other_text() -> None:
    translated = typer.main.get_command(app)
    translate_help(translated)
    assert all(HAN.search(text) for text in helps(translated))
    assert not any(HAN.search(text) for text in helps(typer.main.get_command(app)))


@pytest.mark.parametrize("program", [app, data_app], ids=["efficientbench", "data_tools"])
def test_a_chinese_user_gets_help_by_both_its_options(program: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    group: Any = typer.main.get_command(program)
    translate_help(group)
    for words in ([], *([name] for name in group.commands)):
        shown = []
        for option in ("-h", "--help"):
            assert group.main([*words, option], prog_name="program", standalone_mode=False) == 0, words
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1], words
        assert "-h, --help" in shown[0], words
        assert "显示此帮助并退出。" in shown[0], words


def templates(node: ast.AST) -> Iterator[str]:
    """Yield the texts that an argument may be, with a value in place of what is only known later."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "7.5" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from templates(node.body)
        yield from templates(node.orelse)


def said_by_the_doctor() -> list[str]:
    """Return the texts of two words or more that the doctor's code gives to its checks, titles and last lines."""
    found: list[str] = []
    for file in sorted((ROOT / "efficientbench" / "doctor").glob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in SAID:
                found += [text for argument in call.args for text in templates(argument)]
    return [text for text in dict.fromkeys(found) if " " in text and len(re.findall("[A-Za-z]{2,}", text)) > 1]


def test_every_message_of_the_doctor_has_a_chinese_translation() -> None:
    said = said_by_the_doctor()
    assert len(said) > 20
    assert [text for text in said if not HAN.search(in_chinese(text))] == []
    assert in_chinese("3.9.2; >=3.10 is needed") == "3.9.2；需要 >=3.10"


def mistakes(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of two words or more of each mistake that the code of a folder raises."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else None
            name = getattr(call.func, "id", getattr(call.func, "attr", "")) if isinstance(call, ast.Call) else ""
            if isinstance(call, ast.Call) and name in MISTAKES:
                for text in (text for argument in call.args for text in templates(argument)):
                    # A key and what another error says are no words of their own.
                    if len(re.findall(r"(?<![\w.])[A-Za-z]{2,}(?![\w.=])", text.partition(": 7.5")[0])) > 1:
                        yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def test_mistakes_of_the_guides_commands_are_told_in_chinese_and_the_others_counted() -> None:
    lacking = {
        folder: [f"{place}: {text}" for place, text in mistakes(folder) if not HAN.search(in_chinese(text))]
        for folder in (*TRANSLATED, "efficientbench", "metrics", "data_tools", "launchers")
    }
    print("\n".join(line for lines in lacking.values() for line in lines))
    assert {folder: lacking[folder] for folder in TRANSLATED if lacking[folder]} == {}
    assert sum(len(lines) for lines in lacking.values()) <= UNTRANSLATED


def warnings_printed(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the place of each `print` of a warning in the code of a folder, and the printing function."""
    for file in sorted((ROOT / "efficientbench" / folder).rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call):
                texts = [text for argument in call.args for text in templates(argument)]
                if any(text.startswith("warning: ") for text in texts):
                    yield f"{file.relative_to(ROOT)}:{call.lineno}", getattr(call.func, "id", "")


def test_no_warning_about_runs_bypasses_the_translation() -> None:
    folders = ("chat", "cli", "evaluation", "export", "generation", "metrics/report", "sweep")
    found = [each for folder in folders for each in warnings_printed(folder)]
    assert len(found) > 5
    assert [place for place, printer in found if printer not in ("in_users_language", "print_stderr")] == []


@pytest.mark.parametrize(
    ("warning", "chinese"),
    [
        (
            "run/checkpoint/step_6/a.pt: damaged, it has 3,000 bytes where 4,000 were written",
            "run/checkpoint/step_6/a.pt：已损坏，有 3,000 字节，而写入的是 4,000 字节",
        ),
        (
            "run/checkpoint/step_6/a.pt: damaged, its SHA-256 is not that of the manifest",
            "run/checkpoint/step_6/a.pt：已损坏，其 SHA-256 与清单不符",
        ),
        (
            "run/checkpoint/step_6/manifest.json: damaged (its checksum does not fit its content)",
            "run/checkpoint/step_6/manifest.json：已损坏（其校验和与内容不符）",
        ),
        ("run/checkpoint/step_6/a.pt: missing", "run/checkpoint/step_6/a.pt：缺失"),
        ("what follows is of step 3, the newest intact checkpoint", "以下为第 3 步，即最新的完好检查点"),
        (
            "the code of a.b:VARIANT has changed since the run was trained: what follows is that of the changed code",
            "a.b:VARIANT 的代码在训练之后有改动：以下属于改动后的代码",
        ),
        (FP8_CPU.quality_only, "CPU 没有 fp8 乘法，每次都要先展宽权重：只能测量其质量（evaluate、generate、chat）"),
        (
            "the evaluation was not added to the record: r.json: written in schema version 2; this program reads 3",
            "评估未写入记录：r.json：以版本 2 的格式写成；此程序读取 3",
        ),
    ],
)
def test_a_warning_about_a_trained_model_is_told_in_chinese(warning: str, chinese: str) -> None:
    assert in_chinese(f"warning: {warning}") == f"警告：{chinese}"


def test_a_mistake_is_told_in_chinese_line_by_line_and_part_by_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = (
        "error: 2 problems:\n  parallel.tp: 3 does not divide the 4 heads (model.heads)\n  new; x: what nobody knows"
    )
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    print_stderr(message)
    assert capsys.readouterr().err == (
        "错误：2 处错误：\n  parallel.tp：3 不能整除 4 个头（model.heads）\n  new; x: what nobody knows\n"
    )
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    print_stderr(message)
    assert capsys.readouterr().err == message + "\n"


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "'H100 SXN' is not in rows.yaml; did you mean 'H100 SXM'?",
            "'H100 SXN' 不在 rows.yaml 之中；您是否想写 'H100 SXM'？",
        ),
        (
            "model.pattern: a pattern of 6 layers does not fit a model of 4 (model.layers): name 1 to 4, or set "
            "model.layers=6",
            "model.pattern：6 层的 pattern放不进 4 层的模型（model.layers）：请写 1 到 4 个，或设置 model.layers=6",
        ),
        (
            "'csv' is no sink (did you mean wandb?): they are wandb:TARGET",
            "'csv' 不是输出目标 （您是否想写 wandb？）：可用的有 wandb:TARGET",
        ),
        (
            "c.json is damaged: its key 'files' has no checksums; prepare the corpus again",
            "c.json 已损坏：其键 'files' 没有校验和；请重新准备语料",
        ),
        (
            "3 of 40 documents are not usable, and at most 1.00% may be (the first: no text); "
            "c.rejects.jsonl lists them: mend them, or allow more",
            "40 个文档中有 3 个不可用，最多允许 1.00%（第一个：no text）；"
            "c.rejects.jsonl 列出了它们：请修复，或允许更多",
        ),
        (
            "gqa and mla differ in more than the model; dtype: bf16 against fp32. "
            "To compare them all the same: --despite dtype",
            "gqa 与 mla 不只在模型上不同；dtype: bf16 against fp32。若仍要比较：--despite dtype",
        ),
        (
            "rows.jsonl:2: tools: descriptions of tools are not read; put them into system, or leave the column out; "
            "data.unusable=drop leaves such rows out, and counts them",
            "rows.jsonl:2：tools：不读取工具的描述；请写入 system，或去掉该列；data.unusable=drop 会舍去这样的行并计数",
        ),
    ],
)
def test_a_mistake_with_values_and_a_remedy_is_told_in_chinese(english: str, chinese: str) -> None:
    assert in_chinese(english) == chinese


@pytest.mark.parametrize(
    ("answer", "chinese"),
    [
        (
            "Fastest, tokens/s: a_50M and b_50M: no difference; 2,193 to 2,200; 95 %: -1.0% to +2.0%; 3 and 3 runs; "
            "1.5% apart at this spread takes 12 repeats",
            "最快，tokens/s：a_50M and b_50M：没有差别；2,193 至 2,200；95 %：-1.0% 至 +2.0%；3 与 3 个运行；"
            "在此离散程度下区分 1.5% 需要重复 12 次",
        ),
        (
            "Fastest, tokens/s: a: 2,193; 12.0% more than b (95 %: 8.0% to 14.0%; 3 and 3 runs), and than c by more; "
            "1.5% apart at this spread takes above 1000 repeats",
            "最快，tokens/s：a: 2,193；比 b 多 12.0%（95 %：8.0% 至 14.0%；3 与 3 个运行），比 c 更多；"
            "在此离散程度下区分 1.5% 需要重复超过 1000 次",
        ),
        (
            "Lowest validation loss: a: 3.1; no verdict against b; a 1.0% less than c (3 and 3 runs)",
            "验证损失最低：a: 3.1；对 b 不下结论；a 比 c 少 1.0%（3 与 3 个运行）",
        ),
        (
            "Beaten by no other row in tokens/s, val loss together: a (figures as they stand).",
            "在 tokens/s, val loss 上没有被其他行全面超过：a（按数字本身）。",
        ),
        (
            "Models of different cost: a has 4.0% more parameters and 3.0% fewer training FLOPs per token than b.",
            "代价不同的模型：a 参数多 4.0%、每个 token 的训练 FLOPs 少 3.0%，相对于 b。",
        ),
    ],
)
def test_a_reports_answer_is_told_in_chinese(answer: str, chinese: str) -> None:
    assert in_chinese(answer) == chinese


def test_a_plan_is_told_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    shown = CliRunner().invoke(app, ["plan", "gqa_0.5B"]).output
    rows = [line.split("│")[1].strip() for line in shown.splitlines() if line.count("│") > 2]
    assert len(rows) > 20
    assert [row for row in rows if row and not HAN.search(row) and row != "epochs"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "gqa_1.5B"],
        pytest.param(["plan", "gqa_1.5B", "--world", "8", "--device", "Ascend 910B3"], marks=pytest.mark.proof),
        ["plan", "gqa_1.5B", "--world", "8", "--device", "H100 SXM", "--search", "--price-per-hour", "2"],
        pytest.param(
            ["plan", "gqa_7B", "--world", "16", "--device", "H100 SXM", "tp=2", "pp=4"], marks=pytest.mark.proof
        ),
        ["finetune", "lora_32B", "--plan", "--world", "16", "--device", "Ascend 910B3"],
        ["finetune", "lora_32B", "--plan", "--world", "2", "--memory-gb", "8"],
        ["sweep", "--dry-run", "--only", "gqa,mla", "--sizes", "0.5B"],
        ["sweep", "--dry-run", "--only", "gqa", "--device", "Ascend 910B3", "--nodes", "2", "--generate"],
    ],
    ids=" ".join,
)
def test_plans_of_the_guides_are_told_in_chinese(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    monkeypatch.chdir(tmp_path)
    # Counting a stage makes process groups, which other tests may have made in this process already.
    own = words[0] == "plan" and "--world" in words
    shown = efficientbench(*words, cwd=tmp_path).stdout if own else CliRunner().invoke(app, words).output
    lines = shown.splitlines()
    assert len(lines) > 5
    # The sources of a device's rates are titles of English pages.
    english = [each for each in lines if re.search("[a-z]{2,} [a-z]{2,}", each) and not each.startswith("速率")]
    # A command to type.
    assert [each for each in english if not each.startswith("第一种：efficientbench")] == []


def test_a_device_of_several_kinds_is_refused_in_chinese() -> None:
    told = efficientbench("plan", "gqa_1.5B", "--device", "910B", expect=2, LC_ALL="zh_CN.UTF-8").stderr
    assert told.startswith("错误：'910B'：昇腾 910B 的峰值取决于具体型号")
    assert told.endswith("请写其中之一：Ascend 910B1, Ascend 910B2, Ascend 910B3, Ascend 910B4\n")


def test_checks_are_printed_in_the_users_language(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check("cuda", False, "no NVIDIA driver's device file (/dev/nvidia0) on this machine", "an Ascend 910"),
        Check("cpu", True, "1 × some processor, 8.0 GB of the host; computes in fp32, bf16"),
        Check("output", False, "output: 3.5 GB free, and /data cannot be written", "output=FOLDER"),
        Check("torch", False, "what nobody has translated; neither this"),
    ]

    def printed(locale: str) -> list[str]:
        monkeypatch.setenv("LC_ALL", locale)
        console = Console(file=io.StringIO(), width=200)
        print_checks(console, "Devices", checks)
        return [" ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]

    assert printed("zh_CN.UTF-8") == [
        "设备",
        "✗ cuda 本机没有 NVIDIA 驱动的设备文件（/dev/nvidia0）",
        "需要：昇腾 910",
        "✓ cpu 1 × some processor，主机的 8.0 GB；可用 fp32, bf16 计算",
        "✗ output output：剩余 3.5 GB，且 /data 不可写",
        "需要：output=FOLDER",
        "✗ torch what nobody has translated; neither this",
    ]
    assert printed("C.UTF-8")[:3] == ["Devices", f"✗ cuda {checks[0].result}", "needs: an Ascend 910"]


@pytest.mark.parametrize(
    ("variables", "chinese"),
    [
        ({}, False),
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LANG": "zh_TW"}, True),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, False),
        ({"LANG": "de_DE", "LC_MESSAGES": "zh_CN"}, True),
        ({"LC_ALL": "C", "LC_MESSAGES": "zh_CN", "LANG": "zh_CN"}, False),
        ({"LC_ALL": "", "LANG": "zh_CN"}, True),
    ],
)
def test_the_locale_of_messages_decides_the_language(variables: dict[str, str], chinese: bool) -> None:
    assert is_chinese(variables) is chinese


def test_the_table_of_translations_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [table.read_text(encoding="utf-8") for table in TABLES]
    keys = [key for text in texts for key in re.findall(r'^  ("(?:[^"\\]|\\.)*"): ', text, re.MULTILINE)]
    parts = [part for text in texts for part in parse_own_yaml(text).values()]
    content = {english: chinese for part in parts for english, chinese in part.items()}
    # No key twice, of which a reader would see the last alone.
    assert len(keys) == len(content)
    for english, chinese in content.items():
        assert HAN.search(chinese), english
        assert len(re.findall(r"\{\d?\}", chinese)) == len(re.findall(r"\{[*n]?\}", english)), english
    # As deep as values go: the reason within a line is Chinese too.
    rapl = "no RAPL zone in /sys: a virtual machine or container hides them, or the kernel module "
    rapl += "intel_rapl_msr is not loaded"
    assert in_chinese(f"sensor rapl: {rapl}").startswith("传感器 rapl：/sys 中没有 RAPL 区域")
    assert in_chinese("for cuda: this torch was built without nccl") == "用于 cuda：此 torch 构建时没有 nccl"
    assert in_chinese("Nothing can be trained here: mend torch first.") == "此处无法训练：请先修复 torch。"
    monkeypatch.setenv("LC_ALL", "C")
    assert in_users_language("not installed") == "not installed"


def test_a_chinese_user_is_told_mistakes_in_chinese() -> None:
    def told(*words: str) -> str:
        return efficientbench(*words, expect=2, LC_ALL="zh_CN.UTF-8").stderr.splitlines()[-1]

    assert told("plan") == "错误：值无效：plan 需要运行的名称，如 gqa_1.5B，或 --all"
    assert told("plan", "gqa_1.5B", "training.stepz=3") == "错误：training.stepz：未知的键；您是否想写 training.steps？"


def test_a_chinese_user_gets_chinese_help() -> None:
    asked = efficientbench("launch", "--help", LC_ALL="zh_CN.UTF-8")
    assert (asked.returncode, asked.stderr) == (0, "")
    shown = ("写出在其他节点上启动运行的脚本", "--container", "在容器中运行")
    for words in (*shown, "用法：", "参数:", "选项:", "[默认：1", "显示此帮助并退出。"):
        assert words in asked.stdout
    assert not re.search("Usage|Options|Arguments|default|Show this", asked.stdout)
    assert not HAN.search(efficientbench("launch", "--help", LC_ALL="C.UTF-8").stdout)


def test_a_chinese_user_learns_how_to_ask_for_help() -> None:
    refused = efficientbench("run", "--stepz", expect=2, LC_ALL="zh_CN.UTF-8").stderr.splitlines()
    assert refused[1:] == ["用 'efficientbench run -h' 查看帮助。", "", "错误：没有选项 --stepz（可能是：--help）"]
    efficientbench("run", "-h", expect=0, stderr="", LC_ALL="zh_CN.UTF-8")


def test_a_mistake_that_begins_with_a_name_is_told_after_the_word_error() -> None:
    assert in_chinese("error: a.idx is missing, which b lists: c").startswith("错误：缺少 a.idx")
