"""What runs on aarch64, the processor of most Ascend hosts: the set-up and a killed run in an emulated machine.

    python tests/benchmarks/aarch64.py --folder FOLDER [--write]

It unpacks Debian's arm64 into FOLDER/root, clones the last commit there, and calls each stage below in it under
qemu-user. A called stage that ended well is not called again: after an interruption the same command goes on with the
stage that was reached. It takes hours and 10 GB, and needs root and Debian's debootstrap, qemu-user-static and proot
(proot where the kernel does not start qemu by binfmt_misc). qemu 7.2, Debian 12's, crashes where torch 2.13 is
imported; Debian 13's 10.0 does not: let `qemu-aarch64-static` on PATH be that one. What is printed lies in
FOLDER/STAGE.log. Checkpoints go both ways between the emulated processor and this one. With `--write`, the rows are
written for the docs as soon as each stage has ended. The runs' text is this Python's sample, on both sides.

The processor that qemu shows by default is an Armv8.2 one without SVE, as the Kunpeng 920 is.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import requires
from importlib.metadata import version as version_of
from pathlib import Path

from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.command_line import command, environment, losses, record
from support.emulated import QEMU, WHEELS, Machine, debian, download, said_by_qemu, starts_by_kernel
from support.emulated_trial import CACHE, CLONE, OUTPUT, RUN, StageError, Trial, kill_after, resumed, whole_here
from support.measured import git, options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU
from efficientbench.metrics.files import write_whole

SMOKE = ("bash", "experiments/attention_variants/run_gqa_1.5B.sh", "--smoke")
EVERY_TEN = "checkpoint.interval=10"
SHORT = ("training.steps=20", "checkpoint.interval=5")
"""The run that is killed: an emulated step takes up to 40 s."""
KILL_AFTER_STEPS = 8
NOT_REACHED = "not reached"
HANDED_OVER_AFTER_STEPS = 80
"""Steps of the run that this processor begins; few are left for the emulated one."""


def main() -> int:
    """Call the stages that have not ended well, write the rows with `--write`, and return 1 where not all have."""
    parser = options(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the machine, the logs and this machine's runs lie"
    )
    parser.add_argument("--suite", default="bookworm", help="the release of Debian")
    parser.add_argument("--mirror", default=os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian"))
    parser.add_argument("--processor", default="neoverse-n1", help="see qemu-aarch64-static -cpu help")
    parser.add_argument("--limit-min", type=float, default=240, help="minutes that one command may take")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder / "root", arguments.processor, starts_by_kernel())
    trial = Trial(machine, folder, arguments.suite, arguments.mirror, arguments.limit_min * 60)
    kept = folder / "stages.json"
    done: dict[str, str] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    failed: dict[str, str] = {}
    for stage, work in STAGES.items():
        if stage not in done and not any(needed in failed for needed in NEEDED):
            call(stage, work, trial, done, failed)
            write_whole(kept, json.dumps(done, indent=1, ensure_ascii=False) + "\n")
        if arguments.write:
            rows = [{"stage": each, "result": done.get(each, failed.get(each, NOT_REACHED))} for each in STAGES]
            write_content(__file__, CPU(), about(trial) | {"rows": rows})
    return int(len(done) < len(STAGES))


def call(stage: str, work: Callable[[Trial], str], trial: Trial, done: dict[str, str], failed: dict[str, str]) -> None:
    """Call a stage, print how it went, and note that in `done` or `failed`."""
    begin_s = time.monotonic()
    print(f"{stage} …", flush=True)
    try:
        result = done[stage] = work(trial)
    except StageError as error:
        result = failed[stage] = f"failed: {error}"
    print(f"{result}, after {(time.monotonic() - begin_s) / 60:.1f} min", flush=True)


def machine(trial: Trial) -> str:
    """Make the emulated machine."""
    try:
        debian(trial.machine.root, trial.suite, trial.mirror, trial.folder / "machine.log")
    except subprocess.CalledProcessError as error:
        raise StageError(f"{' '.join(error.cmd)}: exit code {error.returncode}") from error
    log = trial.folder / "machine.log"
    if trial.machine.call(["python3", "-c", "import platform as p; print(p.machine(), p.python_version())"], log) != 0:
        raise StageError(f"python3 does not start{said_by_qemu(log.read_text(encoding='utf-8'))}")
    kind, version = log.read_text(encoding="utf-8").split()
    return f"Debian {trial.suite}, {kind}, Python {version}"


def clone(trial: Trial) -> str:
    """Clone the last commit into the machine."""
    target = trial.machine.path(CLONE)
    shutil.rmtree(target, ignore_errors=True)
    git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(target))
    return f"commit {git('-C', str(target), 'describe', '--always')}"


def wheels(trial: Trial) -> str:
    """Download here what the machine installs: the emulated pip would take an hour for it."""
    metadata = [Requirement(each) for each in requires("efficientbench") or ()]
    needed = ["pip", "setuptools>=77", "wheel"]
    for each in metadata:
        places = [{"platform_machine": "aarch64", "extra": extra} for extra in ("metrics", "data", "train")]
        if each.marker is None or any(each.marker.evaluate(place) for place in places):
            needed.append(f"{each.name}{each.specifier}")
    target, log = trial.machine.path(WHEELS), trial.folder / "wheels.log"
    try:
        download(needed, ROOT / "constraints.txt", trial.python, target, log)
    except subprocess.CalledProcessError as error:
        raise StageError(log.read_text(encoding="utf-8").splitlines()[-1]) from error
    files = list(target.iterdir())
    native = sum("aarch64" in file.name for file in files)
    size = sum(file.stat().st_size for file in files)
    return f"each of {len(files)} packages has a wheel, {native} of them for aarch64 alone; {size / 1e9:.1f} GB"


def set_up(trial: Trial) -> str:
    """Make the environment there, as a user does."""
    trial.inside("set-up", "bash", "launchers/bootstrap.sh")
    code = "import importlib.metadata as m, torch; print(torch.__version__, len(list(m.distributions())))"
    # torch says first that the emulated machine's /sys describes no processor of Arm.
    version, packages = trial.inside("packages", ".venv/bin/python", "-c", code).splitlines()[-1].split()
    size = sum(each.lstat().st_size for each in trial.machine.path(f"{CLONE}/.venv").rglob("*"))
    return f"completed: {packages} packages of {size / 1e9:.1f} GB, torch {version}"


def configuration(trial: Trial) -> str:
    """Compare the plan of a run with this processor's."""
    words = ("plan", "gqa_1.5B", "--smoke")
    theirs = trial.inside("plan", ".venv/bin/efficientbench", *words)
    ours = subprocess.run(
        command(*words), env=environment(COLUMNS="80"), capture_output=True, text=True, check=True
    ).stdout
    if theirs != ours:
        raise StageError("another plan")
    return f"equal to that of {platform.machine()}"


def handed_over(trial: Trial) -> str:
    """Resume a run there that this processor began."""
    whole = whole_here(trial, "whole")
    folder, words = trial.native("begun", EVERY_TEN)
    target = trial.output("handed_over")
    if not target.exists():
        shutil.rmtree(folder, ignore_errors=True)
        kill_after(HANDED_OVER_AFTER_STEPS, folder, words, trial.folder / "begun.log", environment())
        shutil.copytree(folder, target)
    text = trial.inside("handed_over", *SMOKE, *trial.given("handed_over"), EVERY_TEN)
    return resumed(text, target, whole)


def data(trial: Trial) -> str:
    """Compare the data that the machine prepared for that run with this processor's, byte by byte."""
    names = ("tokens.bin", "tokens.idx", "tokens.tokenizer/tokenizer.json")
    sums = [
        [
            hashlib.sha256(file.read_bytes()).hexdigest()
            for name in names
            for file in sorted(cache.glob(f"corpus-*/{name}"))
        ]
        for cache in (trial.folder / "native" / "cache", trial.machine.path(CACHE))
    ]
    if len(sums[0]) != len(names) or sums[0] != sums[1]:
        raise StageError("other bytes")
    return "tokenizer and tokens have the bytes of those of " + platform.machine()


def killed(trial: Trial) -> str:
    """Kill a run there and repeat its command."""
    words = (*SMOKE, *trial.given("killed"), *SHORT)
    folder, copy = trial.output("killed"), trial.folder / "native" / "taken_over" / RUN
    if not copy.exists():
        shutil.rmtree(folder, ignore_errors=True)
        kill_after(KILL_AFTER_STEPS, folder, trial.machine.words(words, CLONE), trial.folder / "killed.log", None)
        shutil.copytree(folder, copy)
    return resumed(trial.inside("resumed", *words), folder, None)


def taken_over(trial: Trial) -> str:
    """Resume here, on this processor, the run that was killed there."""
    folder, words = trial.native("taken_over", *SHORT)
    log = trial.folder / "taken_over.log"
    with log.open("w", encoding="utf-8") as file:
        status = subprocess.run(words, env=environment(), stdout=file, stderr=file, check=False).returncode
    if status != 0:
        raise StageError(f"exit code {status}")
    return resumed(log.read_text(encoding="utf-8"), folder, whole_here(trial, "short", *SHORT))


def undisturbed(trial: Trial) -> str:
    """Compare the resumed run with one that nobody killed, and with this processor's."""
    trial.inside("whole", *SMOKE, *trial.given("whole"), *SHORT)
    folders = trial.output("whole"), trial.output("killed"), whole_here(trial, "short", *SHORT)
    whole, again, here = (record(each) for each in folders)
    equal = losses(trial.output("whole")) == losses(trial.output("killed"))
    same = equal and whole["validation_loss"] == again["validation_loss"]
    apart = abs(whole["validation_loss"] / here["validation_loss"] - 1)
    return (
        f"{'the same losses bit for bit' if same else 'other losses'} as the resumed run; "
        f"{apart:.0e} of the loss away from {platform.machine()}; {whole['al_s']:.1f} s a step"
    )


def report(trial: Trial) -> str:
    """Write the report of these runs there."""
    trial.inside("report", ".venv/bin/efficientbench", "report", OUTPUT)
    found = [
        name for name in ("report.html", "report.md", "report.csv") if trial.machine.path(f"{OUTPUT}/{name}").exists()
    ]
    return f"written: {', '.join(found)}"


STAGES: dict[str, Callable[[Trial], str]] = {
    "emulated machine": machine,
    "clone": clone,
    "wheels": wheels,
    "set-up": set_up,
    "plan": configuration,
    "run begun on x86-64": handed_over,
    "data": data,
    "run killed, repeated": killed,
    "the same, resumed on x86-64": taken_over,
    "run that nobody killed": undisturbed,
    "report": report,
}
NEEDED = ("emulated machine", "clone", "wheels", "set-up")
"""Without these no other stage can be called."""


def about(trial: Trial) -> dict[str, object]:
    """Return how it was measured."""
    version = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    how = "started by the kernel (binfmt_misc)" if trial.machine.by_kernel else "started by proot"
    return {
        "machine": f"aarch64 ({trial.machine.processor}) emulated by qemu-user {version}, {how}, "
        f"on {len(os.sched_getaffinity(0))} cores of {CPU().names()[0]}",
        "software": f"torch {version_of('torch')} on {platform.machine()}",
        "conditions": "each stage once; an emulation proves nothing about the speed of such a processor",
    }


if __name__ == "__main__":
    sys.exit(main())
