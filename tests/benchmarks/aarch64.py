"""What runs on aarch64, the processor of most Ascend hosts: the set-up and a killed run in an emulated machine.

    python tests/benchmarks/aarch64.py --folder FOLDER [--write]

It unpacks Debian's arm64 into FOLDER/root, clones the last commit there, and calls each stage below in it under
qemu-user. A called stage that ended well is not called again: after an interruption the same command goes on with the
stage that was reached. It takes hours and 10 GB, and needs root and Debian's debootstrap, qemu-user-static and proot
(proot where the kernel does not start qemu by binfmt_misc). What is printed lies in FOLDER/STAGE.log. Checkpoints go
both ways between the emulated processor and this one. With `--write`, the rows are written for the docs.

The processor that qemu shows by default is an Armv8.2 one without SVE, as the Kunpeng 920 is.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.command_line import command, environment, losses, record
from support.emulated import QEMU, WHEELS, Machine, debian, download, said_by_qemu, starts_by_kernel
from support.measured import git, options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU
from efficientbench.metrics.files import write_whole

CLONE, OUTPUT, CACHE = "/srv/efficientbench", "/srv/output", "/srv/cache"
RUN = "gqa_1.5B_smoke"
SMOKE = ("bash", "experiments/attention_variants/run_gqa_1.5B.sh", "--smoke")
EVERY_TEN = "checkpoint.interval=10"
KILL_AFTER_STEPS = 30
HANDED_OVER_AFTER_STEPS = 80
"""Of the run that this processor begins: few steps are left for the emulated one."""
SAME_LOSS = 1e-4
"""Relative: how far losses of two processors may lie apart, whose sums have other orders."""


class StageError(Exception):
    """A stage did not end as it should; the message is its cell."""


@dataclass(frozen=True)
class Trial:
    """The emulated machine, this machine's folder for logs and its own runs, and how long a command may take."""

    machine: Machine
    folder: Path
    suite: str
    mirror: str
    limit_s: float

    @property
    def python(self) -> str:
        """The release of the machine's Python, like 3.11."""
        return max(each.name for each in self.machine.path("/usr/lib").glob("python3.*")).removeprefix("python")

    def inside(self, name: str, *words: str) -> str:
        """Run a command of the clone in the machine and return what it printed.

        Raises StageError: it failed or took too long; with qemu's own line where there is one.
        """
        log = self.folder / f"{name}.log"
        try:
            status = self.machine.call(words, log, CLONE, self.limit_s)
        except subprocess.TimeoutExpired as error:
            raise StageError(f"stopped after {self.limit_s / 60:.0f} min") from error
        text = log.read_text(encoding="utf-8", errors="replace")
        if status != 0:
            raise StageError(f"exit code {status}{said_by_qemu(text)}")
        return text

    def output(self, name: str) -> Path:
        """Return the folder of the run that the machine wrote under this name."""
        return self.machine.path(f"{OUTPUT}/{name}") / RUN

    def native(self, name: str, *more: str) -> tuple[Path, list[str]]:
        """Return the folder of a run of this processor, and its command."""
        output = self.folder / "native" / name
        cache = f"data.cache={self.folder / 'native' / 'cache'}"
        return output / RUN, command("run", "gqa_1.5B", "--smoke", f"output={output}", cache, *more)


def main() -> int:
    """Call what has not ended well yet, write the rows with `--write`, and return 1 where a stage did not end well."""
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
    rows, well = called(trial)
    if arguments.write:
        write_content(__file__, CPU(), about(trial) | {"rows": rows})
    return int(not well)


def called(trial: Trial) -> tuple[list[dict[str, str]], bool]:
    """Call every stage that has not ended well, up to one that the others need; return their rows, and if all are."""
    kept = trial.folder / "stages.json"
    done: dict[str, dict[str, str]] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    rows = []
    for stage, work in STAGES.items():
        if stage not in done:
            begin_s = time.monotonic()
            print(f"{stage} …", flush=True)
            try:
                done[stage] = {"stage": stage, "result": work(trial)}
            except StageError as error:
                rows.append({"stage": stage, "result": str(error)})
                print(str(error), flush=True)
                if stage in NEEDED:
                    break
                continue
            write_whole(kept, json.dumps(done, indent=1, ensure_ascii=False) + "\n")
            print(f"{done[stage]['result']}, after {(time.monotonic() - begin_s) / 60:.1f} min", flush=True)
        rows.append(done[stage])
    return rows, len(done) == len(STAGES)


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
    version, packages = trial.inside("packages", ".venv/bin/python", "-c", code).split()
    size = sum(each.lstat().st_size for each in trial.machine.path(f"{CLONE}/.venv").rglob("*"))
    return f"completed: {packages} packages of {size / 1e9:.1f} GB, torch {version}"


def configuration(trial: Trial) -> str:
    """Compare the plan of a run with this processor's."""
    words = ("plan", "gqa_1.5B", "--smoke")
    theirs = trial.inside("plan", ".venv/bin/efficientbench", *words)
    ours = subprocess.run(
        command(*words), env=environment(COLUMNS="80"), capture_output=True, text=True, check=True
    ).stdout
    return "equal to that of " + platform.machine() if theirs == ours else "another plan"


def handed_over(trial: Trial) -> str:
    """Resume a run there that this processor began."""
    whole = whole_here(trial)
    folder, words = trial.native("begun", EVERY_TEN)
    target = trial.output("handed_over")
    if not target.exists():
        shutil.rmtree(folder, ignore_errors=True)
        kill_after(HANDED_OVER_AFTER_STEPS, folder, words, trial.folder / "begun.log", environment())
        shutil.copytree(folder, target)
    text = trial.inside("handed_over", *SMOKE, f"output={OUTPUT}/handed_over", f"data.cache={CACHE}", EVERY_TEN)
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
    words = (*SMOKE, f"output={OUTPUT}/killed", f"data.cache={CACHE}", EVERY_TEN)
    folder, copy = trial.output("killed"), trial.folder / "native" / "taken_over" / RUN
    if not copy.exists():
        shutil.rmtree(folder, ignore_errors=True)
        kill_after(KILL_AFTER_STEPS, folder, trial.machine.words(words, CLONE), trial.folder / "killed.log", None)
        shutil.copytree(folder, copy)
    return resumed(trial.inside("resumed", *words), folder, None)


def taken_over(trial: Trial) -> str:
    """Resume here, on this processor, the run that was killed there."""
    folder, words = trial.native("taken_over", EVERY_TEN)
    log = trial.folder / "taken_over.log"
    with log.open("w", encoding="utf-8") as file:
        status = subprocess.run(words, env=environment(), stdout=file, stderr=file, check=False).returncode
    if status != 0:
        raise StageError(f"exit code {status}")
    return resumed(log.read_text(encoding="utf-8"), folder, whole_here(trial))


def undisturbed(trial: Trial) -> str:
    """Compare the resumed run with one that nobody killed, and with this processor's."""
    trial.inside("whole", *SMOKE, f"output={OUTPUT}/whole", f"data.cache={CACHE}")
    whole, again, here = (record(each) for each in (trial.output("whole"), trial.output("killed"), whole_here(trial)))
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


def whole_here(trial: Trial) -> Path:
    """Return the folder of this processor's run that nobody disturbed, trained where it has not been."""
    folder, words = trial.native("whole")
    if not (folder / "record.json").exists():
        subprocess.run(words, env=environment(), stdout=subprocess.DEVNULL, check=True)
    return folder


def kill_after(steps: int, folder: Path, words: list[str], log: Path, variables: dict[str, str] | None) -> None:
    """Start a run and end all its processes by SIGKILL after `steps` steps.

    Raises StageError: it ended before.
    """
    with log.open("w", encoding="utf-8") as file:
        run = subprocess.Popen(words, env=variables, stdout=file, stderr=file, start_new_session=True)
        while run.poll() is None and len(losses(folder)) < steps:
            time.sleep(0.05)
        if run.poll() is not None:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise StageError(f"ended before it was killed, exit code {run.returncode}{said_by_qemu(text)}")
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def resumed(text: str, folder: Path, whole: Path | None) -> str:
    """Return after which step a run went on, and how its loss compares with that of the run in `whole`.

    Raises StageError: it began anew, or the losses differ.
    """
    if (went_on := re.search(r"goes on after step (\d+)", text)) is None:
        raise StageError("began anew")
    cell = f"goes on after step {went_on[1]}, completed"
    if whole is None:
        return cell
    mine, other = record(folder)["validation_loss"], record(whole)["validation_loss"]
    if abs(mine / other - 1) > SAME_LOSS:
        raise StageError(f"{cell}; loss {mine}, not {other}")
    return f"{cell}; validation loss {mine:.6f}, that of {platform.machine()} alone {other:.6f}"


def about(trial: Trial) -> dict[str, object]:
    """Return how it was measured."""
    version = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    how = "started by the kernel (binfmt_misc)" if trial.machine.by_kernel else "started by proot"
    return {
        "machine": f"aarch64 ({trial.machine.processor}) emulated by qemu-user {version}, {how}, "
        f"on {len(os.sched_getaffinity(0))} cores of {CPU().names()[0]}",
        "conditions": "each stage once; an emulation proves nothing about the speed of such a processor",
    }


if __name__ == "__main__":
    sys.exit(main())
