"""The command line as a user meets it: fast, without torch where none is needed, and clear about mistakes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import ROOT

from efficientbench.cli.options import overrides_of, resolve_arguments
from efficientbench.config.load import resolve

# As for a user, whose first call keeps the byte code for the others.
WITH_BYTE_CODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT = {**WITH_BYTE_CODE, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "efficientbench.cli", *words],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )


LIBRARIES = """
import pydantic, rich.table, typer, yaml
app = typer.Typer()
@app.command()
def main(number: int = 1) -> None: ...
app(["--help"], standalone_mode=False)
"""
"""The least that a command line with these libraries does."""


def cpu_seconds(*words: str) -> float:
    """The processor time of one call of `python` with these words."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], capture_output=True, env=ENVIRONMENT, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.alone
@pytest.mark.parametrize(
    ("words", "limit"), [(("--help",), 0.8), (("run", "gqa_1.5B", "learn_rate=64"), 2.2), (("plan", "gqa_1.5B"), 2.2)]
)
def test_answers_fast(words: tuple[str, ...], limit: float) -> None:
    """Against its own libraries in turn: a busy machine slows both."""
    pairs = [(cpu_seconds("-m", "efficientbench.cli", *words), cpu_seconds("-c", LIBRARIES)) for _ in range(5)]
    own, libraries = (min(times) for times in zip(*pairs, strict=True))
    assert own < limit * libraries


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "gqa_1.5B", "learn_rate=64"],
        ["plan", "gqa_1.5B"],
        ["scripts", "--check"],
        ["launch", "gqa_1.5B", "--to", "slurm"],
    ],
)
def test_starts_without_torch(words: list[str]) -> None:
    program = (
        "import sys; from efficientbench.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'megatron' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("module", ["efficientbench.cli", "efficientbench.data_tools"])
def test_control_c_while_it_is_loaded_leaves_no_traceback(tmp_path: Path, module: str) -> None:
    # In place of the first foreign package that is imported.
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_too_little_memory_to_load_is_told_in_one_line() -> None:
    limit_bytes = 60_000_000
    done = subprocess.run(
        [sys.executable, "-m", "efficientbench.cli", "run", "gqa_1.5B"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes)),
        check=False,
    )
    told = "error: out of memory: this shell allows a process 60 MB of addresses: ulimit -v unlimited lifts that\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", "gqa_1.5B", "learn_rate=64"],
            "error: learn_rate: unknown key; did you mean training.learning_rate?\n",
        ),
        (["run", "gqa_15B"], "error: there is no run called 'gqa_15B': did you mean gqa_1.5B?\n"),
        (["plan", "gqa_1.5B", "dls"], "error: 'dls': an override is written key=value, like training.seq_len=1024"),
        (["plan", "gqa_1.5B", "parallel.tp=8"], "error: parallel.tp: 8 does not divide the 12 heads"),
        (
            ["plan", "gqa_1.5B", "training.tokens=1"],
            "error: training.tokens: 1 tokens at 32,768 a step are 1 of the 55",
        ),
        (["report", "/nowhere/at/all"], "error: /nowhere/at/all: there is no such folder"),
        (["compare", "/nowhere/at/all", "/tmp"], "error: /nowhere/at/all: there is no such folder"),
        (["run", "gqa_1.5B", "--repeat", "0"], "Invalid value for '--repeat'"),
        (["sweep", "--time-limit", "soon"], "Invalid value for '--time-limit': 'soon' is no time"),
        (["sweep", "mine.yaml", "ours.yaml"], "'ours.yaml': one matrix is named already; a key is written key=value"),
        (["launch", "gqa_1.5B", "--to", "slurm", "--nodes", "0"], "Invalid value for '--nodes'"),
        (["launch", "gqa_1.5B", "--to", "slurm", "--devices-per-node", "-1"], "Invalid value for '--devices-per-node'"),
        (["plan"], "plan needs the name of a run, like gqa_1.5B, or --all"),
        (
            ["run", "gqa_1.5B", "--smoke", "learn_rate=64", "dlc", "training.dtype=int8"],
            "error: 2 problems:\n  learn_rate: unknown key; did you mean training.learning_rate?\n"
            "  training.dtype: 'int8'",
        ),
        (["run", "gqa_1.5B", "--smok"], "No such option"),
    ],
)
def test_mistakes_end_with_one_message(words: list[str], message: str) -> None:
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "shown", "count"),
    [("--smoke gqa_0.5B", "plan of gqa_0.5B_smoke", 1), ("--all --smoke dsw", " 64 ", 21)],
)
def test_plan_takes_the_words_of_run(words: str, shown: str, count: int) -> None:
    done = command("plan", *words.split(), "training.seq_len=64")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(shown) >= count


@pytest.mark.parametrize(
    ("words", "mode", "steps"),
    [
        ([], "dsw", 100),
        (["dsw"], "dsw", 100),
        (["dlc", "training.steps=20"], "dlc", 20),
        (["training.steps=20", "dlc"], "dlc", 20),
    ],
)
def test_mode_and_overrides_in_any_order(words: list[str], mode: str, steps: int) -> None:
    config, found = resolve_arguments("gqa_1.5B", words, smoke=True, data=None, tokenizer=None)
    assert (found, config.training.steps) == (mode, steps)


def test_data_and_tokenizer_are_keys_of_the_configuration() -> None:
    config = resolve("gqa_1.5B", overrides=overrides_of([], "a b=c.jsonl", "folder"))
    assert (config.data.path, config.data.tokenizer) == ("a b=c.jsonl", "folder")
