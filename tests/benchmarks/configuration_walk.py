"""The way of a configuration from `run()` to the first rank's start, in this working tree and at an earlier commit.

    python3 tests/benchmarks/configuration_walk.py [--against COMMIT] [--events 400]

An event is a call of one of our functions, other than a method of the configuration itself, with an argument that is a
configuration, a part of one, or carries one as its `config`. Counted over the first `--events` events, and over all:
the calls that change file (the function called is in another file than its caller), stays (runs of events in one file),
rooms (files), returns (stays in a room already seen) and climbs (stays that go to a higher layer of pyproject.toml than
the stay before). Each tree runs `gqa_1.5B --smoke` on CPUs in folders of its own; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import checked_out
from support.repository import ROOT

PROGRAM = """
import inspect, json, sys
from pathlib import Path
from efficientbench.config.load import resolve
from efficientbench.running.run import run

PACKAGE = str(Path(sys.modules["efficientbench"].__file__).resolve().parent) + "/"
events = []

class RankStarts(BaseException):
    pass

def ours(code):
    name = str(Path(code.co_filename).resolve())
    return name.removeprefix(PACKAGE) if name.startswith(PACKAGE) else None

def carried(value):
    return isinstance(value, Part) or isinstance(getattr(value, "__dict__", {}).get("config"), Part)

def note(frame, event, argument):
    if event != "call":
        return
    if frame.f_code.co_name == "launch" and frame.f_code.co_filename.endswith("processes/launch.py"):
        sys.setprofile(None)
        raise RankStarts
    room = ours(frame.f_code)
    if room is None or frame.f_code.co_name.startswith("<"):
        return
    names = inspect.getargvalues(frame)
    given = [frame.f_locals[name] for name in (*names.args, *([names.varargs] if names.varargs else []))]
    if given and isinstance(given[0], Part) and names.args[0] == "self" or not any(map(carried, given)):
        return
    caller = frame.f_back
    while caller is not None and ours(caller.f_code) is None:
        caller = caller.f_back
    events.append((room, None if caller is None else ours(caller.f_code)))

config = resolve("gqa_1.5B", smoke=True, overrides=sys.argv[1:])
Part = type(config).__mro__[1]  # it has moved
sys.setprofile(note)
try:
    run(config, "dsw")
except RankStarts:
    print(json.dumps(events))
"""


def main() -> int:
    """Print the counts of both trees; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="an earlier commit, counted first")
    parser.add_argument("--events", type=int, default=400, help="events after which the first count ends")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = {"this tree": ROOT}
        if arguments.against:
            trees = {arguments.against: checked_out(arguments.against, Path(folder)), **trees}
        for name, tree in trees.items():
            events = walk(tree, Path(folder) / "output" / tree.name)
            for title, some in ((f"first {arguments.events} events", events[: arguments.events]), ("all", events)):
                counts = ", ".join(f"{count} {what}" for what, count in counted(some, layers(tree)).items())
                print(f"{name}, {title}: {counts}", flush=True)
    return 0


def walk(tree: Path, output: Path) -> list[tuple[str, str | None]]:
    """Return each event's file and its caller's, in order, of a run of the tree that ends at its first rank."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    words = [f"output={output}", f"data.cache={output / 'cache'}", "device=cpu"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [(room, caller) for room, caller in json.loads(done.stdout.splitlines()[-1])]


def layers(tree: Path) -> dict[str, int]:
    """Return the layer of each folder of the package, the lowest 0."""
    text = (tree / "pyproject.toml").read_text(encoding="utf-8").partition("\nlayers = [")[2].partition("]")[0]
    lines = [line.strip().strip('",') for line in text.splitlines() if line.strip()]
    return {
        folder.strip("() "): height
        for height, line in enumerate(reversed(lines))
        for folder in line.replace(":", "|").split("|")
    }


def counted(events: list[tuple[str, str | None]], height: dict[str, int]) -> dict[str, int]:
    """Return the counts of the module's docstring."""
    stays = [room for (room, _), (before, _) in zip(events, [("", None), *events], strict=False) if room != before]
    folders = [height[room.partition("/")[0]] for room in stays]
    return {
        "events": len(events),
        "calls that change file": sum(room != caller for room, caller in events),
        "stays": len(stays),
        "rooms": len(set(stays)),
        "returns": len(stays) - len(set(stays)),
        "climbs": sum(now > before for before, now in zip(folders, folders[1:], strict=False)),
    }


if __name__ == "__main__":
    sys.exit(main())
