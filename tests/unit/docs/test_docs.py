"""The pages of README*.md and docs/: sizes, links, commands, keys, files and generated blocks."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from support.repository import ROOT

from efficientbench.cli.app import app
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.config.tunings import named_tunings
from efficientbench.data_tools.cli import app as data_app
from efficientbench.finetuning.load import resolve_tuning, settable_keys

FRONT_PAGES = sorted(ROOT.glob("README*.md"))
PAGES = [*FRONT_PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("data_tools", "docs", "efficientbench", "examples", "experiments", "launchers", "metrics", "tests")
TAKE_A_RUN = ("run", "plan", "profile", "launch", "finetune")
STANDS_FOR = {"NAME": "gqa_1.5B", "TYPE": "cpu"}
"""What a placeholder of the pages stands for."""


def each_page(function: object) -> object:
    """Call a test once for each page."""
    ids = [str(page.relative_to(ROOT)) for page in PAGES]
    return pytest.mark.parametrize("page", PAGES, ids=ids)(function)


def blocks(page: Path) -> Iterator[str]:
    """Yield the text of the page's bash blocks."""
    for match in re.finditer(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield match[1]


def prose(page: Path) -> str:
    """Return the page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def inline(page: Path) -> list[str]:
    """Return every piece of inline code in the page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command in the page's bash blocks and inline code, without what is optional or elided."""
    lines = [line for block in blocks(page) for line in block.splitlines()]
    for line in [*lines, *inline(page)]:
        line = re.sub(r"\[[^\]]*(\||…|--)[^\]]*\]|…", "", line)
        for part in re.split(r"\s*&&\s*", line):
            try:
                words = [STANDS_FOR.get(word, word) for word in shlex.split(part, comments=True)]
            except ValueError:
                continue
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if len(words) > 1:
                yield words


@functools.cache
def command_group(application: typer.Typer) -> Any:
    """Return the commands of an application, built once for all pages."""
    return typer.main.get_command(application)


def parse(application: typer.Typer, words: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a command as its own parser reads them; run nothing."""
    group = command_group(application)
    if words[0].startswith("-"):
        return group.make_context("command", list(words), resilient_parsing=True).params
    assert words[0] in group.commands, f"there is no command {words[0]}"
    if len(words) == 1:
        return {}
    return group.commands[words[0]].make_context(words[0], list(words[1:])).params


def keys() -> set[str]:
    """Return every key of the configuration, and of every part."""
    schema = RunConfig.model_json_schema()
    found: set[str] = set()

    def walk(part: dict, prefix: str) -> None:
        for name, value in part["properties"].items():
            found.add(prefix + name)
            for choice in [value, *value.get("anyOf", []), *value.get("oneOf", [])]:
                if "$ref" in choice:
                    walk(schema["$defs"][choice["$ref"].rpartition("/")[2]], f"{prefix}{name}.")

    walk(schema, "")
    return found


KEYS = keys() | settable_keys().keys()


def check_run(name: str, words: Sequence[str], smoke: bool) -> None:
    """Resolve a run's configuration from the `key=value` in a command, without code that the reader has written."""
    own = (":VARIANT", "method=my_")
    given = [word for word in words if "=" in word and word != "key=value" and not any(each in word for each in own)]
    (resolve_tuning if name in named_tunings() else resolve)(name, smoke, given)


@each_page
def test_a_page_is_short(page: Path) -> None:
    assert page.stat().st_size <= (8192 if page in FRONT_PAGES else 10_240)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(linked), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


@each_page
def test_commands_parse(page: Path) -> None:
    for words in commands(page):
        first, rest = words[0], words[1:]
        if first == "efficientbench":
            parsed = parse(app, rest)
            named = parsed.get("name")
            is_run = named not in (None, "merge", "effect", "losses") and not named.endswith(".json")
            if rest[0] in TAKE_A_RUN and is_run:
                check_run(parsed["name"], parsed["arguments"] or [], parsed["smoke"])
            axes = parsed["axes"] or [] if rest[0] in ("sweep", "launch") and len(rest) > 1 else []
            for word in axes:
                assert "=" not in word or word.partition("=")[0] in {*KEYS, "key"}, words
        elif first == "efficientbench-data":
            parse(data_app, rest)
        elif first in ("bash", "source") or (first.startswith("python") and rest[0].endswith(".py")):
            script = ROOT / rest[0]
            assert script.is_file() or not rest[0].startswith(FOLDERS), words
            if script.parent.parent == ROOT / "experiments":
                check_run(script.stem.removeprefix("run_"), rest[1:], "--smoke" in rest)


@each_page
def test_named_keys_exist(page: Path) -> None:
    for code in inline(page):
        if re.match(r"(parallel|training|data|measurement|faults|checkpoint|kernels|model)\.[a-z_*]", code):
            name = code.partition("=")[0].split(" ")[0].removesuffix(":").removesuffix(".*")
            assert re.sub(r"^model\.kinds\.\w+(?=\.)", "model", name) in KEYS, code


# Pages whose Chinese leaves the tables of keys, of changes to the code and of names to the English one.
SHORTER = ("finetuning", "optimizers", "oracles", "speedrun")
TWINS = [
    (ROOT / "docs" / page.name, page)
    for page in sorted((ROOT / "docs" / "zh").glob("*.md"))
    if page.stem not in SHORTER and (ROOT / "docs" / page.name).exists()
]


@pytest.mark.parametrize(("english", "chinese"), TWINS, ids=[page.stem for page, _ in TWINS])
def test_a_chinese_page_names_all_that_its_english_twin_names(english: Path, chinese: Path) -> None:
    assert len(TWINS) > 10
    assert sorted(set(inline(english)) - set(inline(chinese))) == []
    headings = [len(re.findall("^##+ ", prose(page), re.MULTILINE)) for page in (english, chinese)]
    assert headings[0] == headings[1]


def test_generated_chinese_lines_have_no_english_sentence() -> None:
    page = ROOT / "docs" / "zh" / "clusters.md"
    (block,) = re.findall("<!-- generated: measured preflight -->(.*?)<!-- end -->", page.read_text("utf-8"), re.DOTALL)
    assert re.findall("[a-z]+ [a-z]+ [a-z]+", block) == []
    assert "一个核，每次预检 3 s。脚本：" in block


@each_page
def test_named_files_exist(page: Path) -> None:
    for code in inline(page):
        if re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./-]*", code):
            assert (ROOT / code).exists(), code


@each_page
def test_no_line_begins_with_an_inline_block(page: Path) -> None:
    """Markdown takes such a line as HTML to its end, and shows links and code in it as they are written."""
    assert not re.search(r"^<!-- generated: [^>]*-->[^\n]", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_generated_blocks_are_up_to_date() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_seeds_name_stands_on_the_page_for_those_who_come_from_them() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    names = (
        *("use_curriculum", "--depth", "micro_batch_size", "gradient_accumulation_steps", "offload_optimizer"),
        *("gradient_checkpointing", "bf16", "lr_scheduler_type", "logging_steps", "model_name_or_path"),
        *("train_on_inputs", "deepspeed", "target_examples_per_step", "examples_per_step", "base_checkpoint"),
        *("mid_checkpoint", "sft_checkpoint", "-n", "--config", "base_loss", "base_checkpoints/", "NODE_RANK"),
        *("tensorboard --logdir output/efficientllm_benchmark", "HF_DATASETS_CACHE", "NCCL_TIMEOUT"),
        *("HF_ENDPOINT=https://hf-mirror.com", "HCCL_CONNECT_TIMEOUT", "trainer_log.txt", "DummyWandb"),
        *("token_bytes.pt", "CUDAPrefetcher", "50 to 80 samples/s"),
    )
    assert [name for name in names if name not in page] == []


def test_a_block_whose_script_has_not_been_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    monkeypatch.setattr(generate, "MEASURED", tmp_path)
    page = generate.filled(ROOT / "docs" / "benchmarks-generation.md")
    assert "\n\nNot measured yet, by `tests/benchmarks/decoding_scaling.py`.\n\n<!-- end -->" in page
    with pytest.raises(FileNotFoundError):
        generate.measured("decoding_speed")


def test_measured_figures_name_their_source_and_are_shown() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for path in sorted((ROOT / "docs" / "measured").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert {"script", "machine", "software", "commit", "date", "conditions"} <= content.keys(), path.name
        if content["script"].startswith("tests/"):
            assert (ROOT / content["script"]).is_file(), path.name
        assert re.search(rf"generated: (measured|rows) {path.stem} ", shown), path.name


def test_measured_figures_name_commits_of_this_history() -> None:
    """A commit that was rewritten after the measurement, or had changes beside it, is not to be found again."""
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("this checkout has no whole history")
    lost = []
    for path in sorted((ROOT / "docs" / "measured").glob("*.json")):
        # A script may collect what several commits measured.
        for commit in json.loads(path.read_text(encoding="utf-8"))["commit"].split(", "):
            command = [*git, "merge-base", "--is-ancestor", commit, "HEAD"]
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                lost.append(f"{path.name}: {commit}")
    assert lost == []
