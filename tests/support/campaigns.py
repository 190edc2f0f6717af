"""What a campaign of kills runs, each as small as it can be, and what has to be equal when it is through."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from support.chat_tokenizers import of_bytes
from support.checkpoints import read_weights
from support.command_line import TINY, children, command, record, steps
from support.conversation_pairs import VOCABULARY, row, write_conversations
from support.outside_rewards import write_questions
from support.repository import ROOT
from support.speedruns import prepared

from efficientbench.training.checkpoints.manifest import complete

SAVED = ("training.steps=40", "checkpoint.interval=2")
MEASURED = ("measured", "step_time_s", "elapsed_s", "time_s", "memory_used_bytes", "power_w")
"""Keys of a line of `steps.jsonl` that no two runs have in common."""
LIMIT_S = 1800
"""No command here takes that long, nor does what it leaves when one of its processes is killed."""


@dataclass(frozen=True)
class Campaign:
    """One command that is killed and repeated."""

    words: Callable[[Path], list[str]]
    """The command that writes into a folder."""
    compared: str
    """What `outcome` returns, in words."""
    outcome: Callable[[Path], object]
    """What a finished command has left in its folder, and what has to be the same each time."""
    works: str = "**/steps.jsonl"
    """The files that grow or appear below the folder while the command is at work: a pattern."""
    share: float = 0.5
    """Longest time to a kill, as a share of what the command takes that nobody kills."""


def kill(process: subprocess.Popen[Any], every: bool, chance: random.Random) -> bool:
    """Kill all processes of a command or a random one, and wait for all to end; whether it was cut short."""
    family = [psutil.Process(process.pid), *children(process.pid)]
    targets = family if every else [chance.choice(family)]
    # All halt first, so that none acts on the end of another.
    for act in (psutil.Process.suspend, psutil.Process.kill):
        for each in targets:
            with suppress(psutil.NoSuchProcess):
                act(each)
    code = process.wait(timeout=LIMIT_S)
    _, left = psutil.wait_procs(family[1:], timeout=LIMIT_S)
    if left:
        sys.exit(f"processes outlive a killed command: {left}")
    return code != 0


def _learned(folder: Path) -> dict[str, object]:
    """Return what a run has learned: each line of its log, its validation loss, the bits of its weights."""
    lines = [{key: value for key, value in line.items() if key not in MEASURED} for line in steps(folder)]
    digest = hashlib.sha256()
    for name, weight in sorted(read_weights(complete(folder)[-1]).items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.contiguous().numpy().tobytes())
    content = record(folder)
    return {
        "lines": [line for line in lines if line["kind"] not in ("quality", "lost")],
        "validation_loss": (content["status"], content["validation_loss"]),
        "weights": digest.hexdigest(),
    }


def _files(paths: Iterable[Path], below: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path below a folder."""
    return {str(path.relative_to(below)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def _trains(inputs: Path, name: str, *keys: str, sweep: bool = False) -> Campaign:
    # A rank that is killed is a failure of its run, which a sweep tries again where it is told to.
    runs = ("sweep", "--only", name, "--smoke", "--repeat=2", "--retry-failed") if sweep else ("run", name, "--smoke")

    def words(folder: Path) -> list[str]:
        return command(*runs, f"output={folder}", f"data.cache={inputs / 'cache'}", *TINY, *SAVED, *keys)

    def outcome(folder: Path) -> object:
        run = folder / f"{name}_smoke"
        return {str(each): _learned(run / each) for each in (("seed_1234", "seed_1235") if sweep else ("",))}

    return Campaign(words, "losses of all steps, validation loss, weights", outcome)


def _sft(inputs: Path) -> Campaign:
    pair = write_conversations(inputs / "pair", 300)
    keys = ("training.objective=sft", f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]", f"data.path={pair}")
    return _trains(inputs, "gqa_1.5B", *keys)


def _rl(inputs: Path) -> Campaign:
    questions = write_questions(inputs / "questions.jsonl", 5)
    pair = write_conversations(inputs / "pair", 60)
    keys = ("training.objective=rl", f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]", f"data.path={pair}")
    asked = (f"rl.questions={questions}", "rl.samples=2", "rl.max_new_tokens=8")
    return _trains(inputs, "gqa_1.5B", *keys, *asked, "rl.reward=support.outside_rewards:ascii_share")


def _lora(inputs: Path) -> Campaign:
    keys = ("zero.stage=3", "training.steps=12", "checkpoint.interval=2", "training.validate_every_steps=6")
    few = ("data.validation_examples=8", f"cache={inputs / 'cache'}", "device=cpu")

    def outcome(folder: Path) -> object:
        run = folder / "lora_tiny"
        lines: list[dict[str, Any]] = [line for line in steps(run) if line["kind"] == "step"]
        held_out = [(each["step"], each["loss"]) for each in record(run)["finetuning"]["held_out"]]
        learned = [(line["step"], line["loss"], line["grad_norm"]) for line in lines]
        return {
            "lines": learned,
            "held_out": (record(run)["status"], held_out),
            "adapter": _files(run.glob("adapter/*.safetensors"), run),
        }

    return Campaign(
        lambda folder: command("finetune", "lora_tiny", *keys, *few, f"output={folder}"),
        "losses and gradient norms of all steps, held-out losses, bytes of the adapter",
        outcome,
    )


def _speedrun(inputs: Path) -> Campaign:
    laid = prepared(inputs, ROOT.parent / "shared" / "data")
    keys = ("training.steps=20", "checkpoint.interval=4")

    def words(folder: Path) -> list[str]:
        work = folder / "work"
        work.mkdir(parents=True, exist_ok=True)
        for checked in (inputs / "work").glob("checked_*"):
            (work / checked.name).write_bytes(checked.read_bytes())
        own = (f"--work={work}" if word.startswith("--work=") else word for word in laid)
        return ["bash", str(ROOT / "launchers" / "speedrun.sh"), *own, *keys]

    def outcome(folder: Path) -> object:
        work = folder / "work"
        stages = {stage: _learned(work / "runs" / f"{stage}_d4" / "seed_1234") for stage in ("base", "mid", "sft")}
        made = [path for path in work.rglob("*") if path.suffix in (".bin", ".idx") or path.name == "tokenizer.json"]
        data = [path for path in made if "runs" not in path.relative_to(work).parts]
        return {**stages, "data": _files(data, work), "card": (work / "runs" / "report_card.md").is_file()}

    compared = "tokenizer and tokens; of each stage losses, validation loss, weights"
    return Campaign(words, compared, outcome, "work/**/*", share=0.15)


def _data_chat(inputs: Path) -> Campaign:
    of_bytes(inputs / "bpe")
    with (inputs / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps(row(number)) + "\n" for number in range(60_000))
    mixture = inputs / "mixture.yaml"
    mixture.write_text("tasks: [{task: messages, path: rows.jsonl, epochs: 2}]")
    program = [sys.executable, "-m", "efficientbench.data_tools", "chat", str(mixture), "--workers=2"]

    def words(folder: Path) -> list[str]:
        return [*program, "--tokenizer", str(inputs / "bpe"), "--output", str(folder / "chat")]

    def outcome(folder: Path) -> object:
        return _files((path for path in folder.rglob("*") if path.is_file()), folder)

    return Campaign(words, "bytes of all files", outcome, "chat.parts/*")


CAMPAIGNS: dict[str, Callable[[Path], Campaign]] = {
    "data chat": _data_chat,
    "SFT": _sft,
    "RL": _rl,
    "LoRA under ZeRO-3": _lora,
    "experts": lambda inputs: _trains(inputs, "moe_1.5Bx8", "parallel.dp=2"),
    "TP 2 × EP 2": lambda inputs: _trains(
        inputs, "moe_1.5Bx8", "parallel.tp=2", "parallel.sp=true", "parallel.ep=2", "parallel.dp=2"
    ),
    "sweep": lambda inputs: _trains(inputs, "gqa_1.5B", sweep=True),
    "speedrun": _speedrun,
}
"""Campaigns by name; each makes its inputs in a folder of its own."""
