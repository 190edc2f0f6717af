"""What kills cost: each kind of command, killed at random moments and repeated, ends as one that nobody killed.

    python tests/benchmarks/kill_campaigns.py --folder FOLDER [CAMPAIGN...] [--write]

A campaign runs its command once undisturbed. Then it kills it ten times with SIGKILL and repeats it each time: all of
its processes at once, as when the power fails, or one of them. Four moments of ten are drawn from the whole time of a
start; before the other six the command has gone on in its work. A command that ends before its moment is compared with
the undisturbed one, and another begins. `FOLDER` takes what the commands write. With `--write`, each row is written for
the docs as soon as its campaign is through; rows of other campaigns stay.
"""

from __future__ import annotations

import datetime
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from replicas.places import job_environment
from support.campaigns import CAMPAIGNS, LIMIT_S, Campaign, kill
from support.command_line import ROOT
from support.measured import commit, options, write_row

KILLS = 10


class Attempts:
    """Starts of one command, in one folder after the other."""

    def __init__(self, campaign: Campaign, folder: Path) -> None:
        self.campaign, self.folder = campaign, folder
        self.environment = job_environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
        self.starts = 0
        self.output = folder / "undisturbed"
        begun_s = time.monotonic()
        process = self.start()
        self.wait_for_work(process)
        self.starting_s = time.monotonic() - begun_s
        self.end(process)
        self.whole_s = time.monotonic() - begun_s
        self.expected = campaign.outcome(self.output)
        self.completed = 0
        self.output = folder / "killed_0"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command; what it prints lies beside its folder."""
        self.starts += 1
        self.output.mkdir(exist_ok=True)
        self.before = self.work()
        self.log = self.folder / f"{self.starts}.log"
        with self.log.open("wb") as log:
            words = self.campaign.words(self.output)
            return subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def work(self) -> dict[Path, int]:
        """Return the size of each file that the command's work changes."""
        sizes = {}
        for path in self.output.glob(self.campaign.works):
            with suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size
        return sizes

    def wait_for_work(self, process: subprocess.Popen[bytes]) -> None:
        """Return once the command has gone on in its work, or has ended."""
        while process.poll() is None and self.work() == self.before:
            time.sleep(0.02)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a command ends by itself; exit where it fails."""
        if code := process.wait(timeout=LIMIT_S):
            sys.exit(f"{self.log}: exit code {code}\n{self.log.read_text()[-3000:]}")

    def compare(self) -> None:
        """Compare what a finished command has left with the undisturbed one, and take the next folder; exit if not."""
        found = self.campaign.outcome(self.output)
        if found != self.expected:
            (self.folder / "found.txt").write_text(repr(found))
            (self.folder / "expected.txt").write_text(repr(self.expected))
            sys.exit(f"{self.output}: not what {self.folder / 'undisturbed'} holds: see found.txt, expected.txt there")
        self.completed += 1
        self.output = self.folder / f"killed_{self.completed}"


def run(name: str, folder: Path) -> dict[str, str]:
    """Return a campaign's row by its titles; exit where a command fails or what it leaves differs."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "inputs").mkdir(parents=True)
    chance = random.Random(name)
    attempts = Attempts(CAMPAIGNS[name](folder / "inputs"), folder)
    print(f"{name}: {attempts.whole_s:.0f} s undisturbed, {attempts.starting_s:.0f} s to its work", flush=True)
    of_all = working = killed = 0
    while killed < KILLS:
        process = attempts.start()
        longest_s = attempts.whole_s
        if chance.random() < 0.6:
            attempts.wait_for_work(process)
            longest_s -= attempts.starting_s
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, longest_s * attempts.campaign.share))
        every = chance.random() < 0.5
        at_work = attempts.work() != attempts.before
        if process.poll() is None and kill(process, every, chance):
            killed, of_all, working = killed + 1, of_all + every, working + at_work
            print(f"{name}: killed {killed} times, at work: {at_work}, all: {every}, {attempts.log}", flush=True)
        else:
            attempts.end(process)
            attempts.compare()
    attempts.end(attempts.start())
    attempts.compare()
    return {
        "command": name,
        "kills": str(killed),
        "of all processes": str(of_all),
        "of one": str(killed - of_all),
        "while at work": str(working),
        "completed and equal": f"{attempts.completed} of {attempts.completed}",
        "compared bit for bit": attempts.campaign.compared,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    """Print each campaign's row; with `--write`, write it for the docs."""
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="takes what the commands write")
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"all by default: {', '.join(CAMPAIGNS)}")
    arguments = parser.parse_args()
    names = list(CAMPAIGNS)
    if unknown := set(arguments.campaigns) - set(names):
        parser.error(f"no such campaign: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for name in arguments.campaigns or names:
        row = run(name, arguments.folder.resolve() / name.replace(" ", "_"))
        print(row, flush=True)
        if arguments.write:
            write_row(__file__, row, lambda each: names.index(each["command"]), "SIGKILL at seeded random moments")


if __name__ == "__main__":
    main()
