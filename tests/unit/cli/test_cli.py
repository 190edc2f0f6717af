"""The command line as a user meets it: fast, without torch where none is needed, and clear about mistakes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from support.repository import ROOT

from efficientbench.basics.program import read_arguments
from efficientbench.cli import main
from efficientbench.cli.app import app, is_key
from efficientbench.cli.options import of_depth, overrides_of, resolve_arguments
from efficientbench.config.load import resolve

# As for a user, whose first call keeps the byte code for the others.
WITH_BYTE_CODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT = {**WITH_BYTE_CODE, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`command(*words)` is exit code, stdout and stderr of the command line, in this process."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["efficientbench", *words])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("pl", ["plan", "plot"]),
        ("run mla_1.5", ["mla_1.5B", "mla_1.5Bx2", "mla_1.5Bx8"]),
        ("plan gqa_0.5B training.seq", ["training.seq_len="]),
        ("finetune lora data.max", ["data.max_length="]),
    ],
)
def test_a_shell_completes_commands_runs_and_keys(
    command: Command, monkeypatch: pytest.MonkeyPatch, typed: str, completed: list[str]
) -> None:
    words = f"efficientbench {typed}"
    for name, value in (("", "complete_bash"), ("WORDS", words), ("CWORD", str(words.count(" ")))):
        monkeypatch.setenv(f"COMP_{name}" if name else "_EFFICIENTBENCH_COMPLETE", value)
    code, found, _ = command()
    assert (code, sorted(found.split())) == (0, completed)


LIBRARIES = """
import pydantic, rich.table, typer, yaml
app = typer.Typer()
@app.command()
def main(number: int = 1) -> None: ...
app(["--help"], standalone_mode=False)
"""
"""The least that a command line with these libraries does."""
COUNTED = """
import sys

calls = 0

def count(frame, event, argument):
    global calls
    calls += event == "call"

program = compile(sys.argv.pop(1), "program", "exec")
sys.setprofile(count)
try:
    exec(program, {"__name__": "program"})
except SystemExit:
    pass
sys.setprofile(None)
print(calls, file=sys.stderr)
"""
LIMITS = {("--help",): 0.9, ("run", "gqa_1.5B", "learn_rate=64"): 3.9, ("plan", "gqa_1.5B"): 4.4}
"""Words of a command → its most calls of Python functions, as a multiple of those of its libraries."""


def calls_of(program: str, *words: str) -> int:
    """The calls of Python functions that a program makes, its imports among them; no two machines differ in it."""
    call = [sys.executable, "-c", COUNTED, program, *words]
    return int(subprocess.run(call, capture_output=True, env=ENVIRONMENT, check=True).stderr.split()[-1])


def test_light_commands_do_little_beside_their_libraries() -> None:
    libraries = calls_of(LIBRARIES)
    calls = {words: calls_of("from efficientbench.cli import main; main()", *words) for words in LIMITS}
    print(libraries, calls)
    assert {words: count for words, count in calls.items() if count >= LIMITS[words] * libraries} == {}


def test_light_commands_do_not_import_torch(tmp_path: Path) -> None:
    """One process makes all calls: what one of them has loaded stays."""
    shapes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 128, **shapes}))
    calls = [
        ["--help"],
        ["run", "gqa_1.5B", "learn_rate=64"],
        ["plan", "gqa_1.5B"],
        ["plan", str(tmp_path / "config.json"), "gqa_1.5B", "--device", "H100 SXM"],
        ["scripts", "--check"],
        ["launch", "gqa_1.5B", "--to", "slurm"],
    ]
    program = f"""
import sys
from efficientbench.cli import main
for words in {calls}:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit:
        pass
    print("after", words, {{"torch", "megatron", "transformers"}} & sys.modules.keys())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("after")] == [
        f"after {words} set()" for words in calls
    ]


@pytest.mark.parametrize("module", ["efficientbench", "efficientbench.cli", "efficientbench.data_tools"])
def test_ctrl_c_during_loading_leaves_no_traceback(tmp_path: Path, module: str) -> None:
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


def test_too_little_memory_for_loading_is_reported_in_one_line() -> None:
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
        (["run", "gqa_1.5B", "dls"], "error: 'dls': an override is written key=value, like training.seq_len=1024"),
        (["plan", "GQA-50m"], "error: there is no run called 'GQA-50m': did you mean gqa_50M?"),
        (["plan", "mla-7b"], "error: there is no run called 'mla-7b': did you mean mla_7B?"),
        (["plan", "gqa_50"], "error: there is no run called 'gqa_50': did you mean gqa_50M?"),
        (["plan", "gpa_50M"], "error: there is no run called 'gpa_50M': did you mean gqa_50M?"),
        (["plan", "gqa_1.5B", "gqa_15B"], "error: there is no run called 'gqa_15B': did you mean gqa_1.5B?"),
        (["plan", "gqa_1.5B", "parallel.tp=8"], "error: parallel.tp: 8 does not divide the 12 heads"),
        (
            ["plan", "gqa_1.5B", "training.tokens=1"],
            "error: training.tokens: 1 token at 32,768 a step: 1 of the 55",
        ),
        (["report", "/nowhere/at/all"], "error: /nowhere/at/all: there is no such folder"),
        (["compare", "/nowhere/at/all", "/tmp"], "error: /nowhere/at/all: there is no such folder"),
        (["run", "gqa_1.5B", "--repeat", "0"], "Invalid value for '--repeat'"),
        (["sweep", "--time-limit", "soon"], "Invalid value for '--time-limit': 'soon' is no time"),
        (["sweep", "ours.yaml", "--matrix", "/no/mine.yaml"], "'ours.yaml': one matrix is named already"),
        (["sweep", "--matrix", "/no/mine.yaml"], "error: /no/mine.yaml"),
        (["sweep", "--only", "gqa_0.5B", f"output={__file__}", "--dry-run"], "test_cli.py is a file; give a folder"),
        (["plan", "gqa_0.5B", f"output={__file__}"], "test_cli.py is a file; give a folder"),
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
        (["plan", "lora_7B"], "lora_7B is a fine-tuning: efficientbench finetune lora_7B"),
    ],
)
def test_a_mistake_ends_with_one_message(command: Command, words: list[str], message: str) -> None:
    code, out, error = command(*words)
    assert (code, out) == (2, "")
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "shown", "count"),
    [("--smoke gqa_0.5B", "plan of gqa_0.5B_smoke", 1), ("--all --smoke dsw", " 64 ", 21)],
)
def test_plan_accepts_the_arguments_of_run(command: Command, words: str, shown: str, count: int) -> None:
    code, out, error = command("plan", *words.split(), "training.seq_len=64")
    assert (code, error) == (0, "")
    assert out.count(shown) >= count


def test_steps_of_reinforcement_learning_follow_from_its_questions(command: Command) -> None:
    code, out, error = command("plan", "rl_d12")
    assert (code, error) == (0, "")
    assert "as many as 1 epoch of the questions take" in out


@pytest.mark.parametrize(
    ("words", "mode", "steps"),
    [
        ([], "dsw", 100),
        (["dsw"], "dsw", 100),
        (["dlc", "training.steps=20"], "dlc", 20),
        (["training.steps=20", "dlc"], "dlc", 20),
    ],
)
def test_mode_and_overrides_are_accepted_in_any_order(words: list[str], mode: str, steps: int) -> None:
    config, found = resolve_arguments("gqa_1.5B", words, smoke=True, data=None, tokenizer=None)
    assert (found, config.training.steps) == (mode, steps)


def test_data_and_tokenizer_are_keys_of_the_configuration() -> None:
    config = resolve("gqa_1.5B", overrides=overrides_of([], "a b=c.jsonl", "folder"))
    assert (config.data.path, config.data.tokenizer) == ("a b=c.jsonl", "folder")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("base_d12", ["depth=16", "lr=1e-3"], ("base_d16", ["lr=1e-3"])),
        ("base", ["dlc", "depth=8"], ("base_d8", ["dlc"])),
        ("nanochat_d20", ["depth=16", "depth=12"], ("nanochat_d12", [])),
        ("base_d12", ["steps=9"], ("base_d12", ["steps=9"])),
        # Two sizes contradict each other: the configuration refuses the key.
        ("gqa_0.5B", ["depth=12"], ("gqa_0.5B", ["depth=12"])),
        ("base_d12", ["depth=deep"], ("base_d12", ["depth=deep"])),
    ],
)
def test_a_depth_selects_the_run_of_that_depth(
    name: str, arguments: list[str], expected: tuple[str, list[str]]
) -> None:
    assert of_depth(name, arguments) == expected


def test_run_and_launch_accept_a_depth_and_list_the_known_ones(command: Command) -> None:
    config, _ = resolve_arguments("base", ["depth=16"], smoke=False, data=None, tokenizer=None)
    assert (config.name, config.model.layers) == ("base_d16", 16)
    code, written, error = command("launch", "base_d12", "depth=16", "--to", "torchrun", "--devices-per-node", "1")
    assert (code, error) == (0, "")
    assert "base_d16" in written
    refused = (2, "", "error: there is no run called 'nanochat_d20': did you mean nanochat_d12?\n")
    assert command("plan", "nanochat", "depth=20") == refused


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("run --depth=16 base_d12 --device_batch_size 8", "run base_d12 depth=16 device_batch_size=8"),
        ("finetune lora_7B --plan --use_curriculum True", "finetune lora_7B --plan use_curriculum=True"),
        ("finetune lora_7B --bf16 --lora-r=8 --data x.json", "finetune lora_7B --data x.json bf16=true lora_r=8"),
        ("finetune lora_7B --memory_gb 8 --zero.hpz 2", "finetune lora_7B --memory-gb 8 zero.hpz=2"),
        ("finetune lora_7B --model tiny --method=dora", "finetune lora_7B model=tiny method=dora"),
        ("run gqa_1.5B --device cpu --query_groups 4", "run gqa_1.5B device=cpu query_groups=4"),
        # What nobody knows, and what a command does not take, is for the command to refuse.
        ("run gqa_1.5B --frobnicate 3", "run gqa_1.5B --frobnicate 3"),
        ("report runs --seed 3", "report runs --seed 3"),
        ("run gqa_1.5B -- --seed", "run gqa_1.5B -- --seed"),
        ("--version", "--version"),
    ],
)
def test_options_of_other_projects_become_keys(typed: str, read: str) -> None:
    assert read_arguments(typer.main.get_command(app), typed.split(), is_key) == read.split()


def test_help_is_asked_in_three_ways(command: Command) -> None:
    assert command("help", "plan") == command("plan", "-h") == command("plan", "--help")
    assert command("help") == command("-h") == command("--help")


def test_the_seeds_command_lines_are_taken_or_answered(command: Command) -> None:
    curriculum = ("--use_curriculum", "True", "--curriculum_seed", "42", "--micro_batch_size", "2")
    code, told, error = command("finetune", "lora_32B", "--plan", *curriculum, "--cutoff_len", "1024")
    assert (code, error) == (0, "")
    assert "1,024" in told
    code, told, error = command("plan", "base", "--depth=16", "--batch_size", "16")
    assert (code, told) == (2, "")
    assert "batch_size: training.micro_batch_size counts a device's sequences" in error
