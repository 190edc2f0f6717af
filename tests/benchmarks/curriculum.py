"""What a curriculum changes beside its baselines, on a tiny model and real text, and two controls of that comparison.

    python tests/benchmarks/curriculum.py --gsm8k train.jsonl [--seeds N] [--work FOLDER] [--write]

Three cases, each with runs of the same seeds:

    steps     difficulty is the number of calculations in the answer: the curriculum and its four baselines
    dealt     the same rows with levels dealt at random: their order must make no difference
    planted   half of the answers stand backwards and come first, and forwards ones are held out: it must make one

Every run is a fine-tuning by the product itself, from examples to record, in a process forked from this one. Losses are
compared at equal loss tokens. In the work folder complete runs are kept: a call after an interruption goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import socket
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Before torch and DeepSpeed are imported: runs beside each other have a core each, and no accelerator is looked for.
os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}

from support.measured import Figure, options, report

from efficientbench.devices.registry import find_device
from efficientbench.finetuning.base_model import find_model
from efficientbench.finetuning.complete import is_complete
from efficientbench.finetuning.config import SEEDS, FinetuneConfig
from efficientbench.finetuning.curriculum.effect import FEWEST_SEEDS, Effect, LossCurve, effect, effects
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.run import FineTuning, PlannedTuning
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.records.record import RunRecord, read_record
from efficientbench.running.kind import Site, with_seeds
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import Rank

ROWS, HELD_OUT, STEPS, BATCH, RATE = 1200, 120, 80, 8, 4e-3
MOST_CHARACTERS, MAX_LENGTH = 480, 320
"""Of question and answer together, and of their tokens."""
LEVELS = ("explain", "reasoning", "topology")
BASELINES = ("paced", "shuffled", "random", "reversed", "random_levels")
HALVES = "[{end: 0.5, mixture: [1, 0]}, {end: 1, mixture: [0, 1]}]"
"""Of the planted case, whose rate rises in the first half and falls in the second: both weigh the same."""


@dataclass(frozen=True)
class Case:
    """Rows, a curriculum of them, and the orders that are compared."""

    name: str
    orders: tuple[str, ...]
    overrides: tuple[str, ...]


def cases(work: Path) -> list[Case]:
    planted = (
        *(f"data.path={work / 'planted.jsonl'}", f"data.validation={work / 'forwards.jsonl'}"),
        *("curriculum.levels=[backwards, forwards]", f"curriculum.stages={HALVES}"),
        f"training.warmup_steps={STEPS // 2}",
    )
    return [
        Case("steps", BASELINES, (f"data.path={work / 'rows.jsonl'}", "curriculum.score=steps")),
        Case("dealt", BASELINES[:2], (f"data.path={work / 'dealt.jsonl'}",)),
        Case("planted", BASELINES[:2], planted),
    ]


def write_rows(gsm8k: Path, work: Path) -> None:
    """Write the rows of each case, from the same questions and answers."""
    read = [json.loads(line) for line in gsm8k.read_text(encoding="utf-8").splitlines()]
    rows = [{"prompt": row["question"], "completion": row["answer"]} for row in read]
    rows = [row for row in rows if sum(map(len, row.values())) <= MOST_CHARACTERS][: ROWS + HELD_OUT]
    if len(rows) < ROWS + HELD_OUT:
        raise SystemExit(f"{gsm8k}: {len(rows):,} rows are short enough, and {ROWS + HELD_OUT:,} are needed")
    chance = random.Random(0)
    dealt = [{**row, "difficulty": chance.choice(LEVELS)} for row in rows]
    planted = [
        {**row, "difficulty": "forwards"} if number % 2 else {**backwards(row), "difficulty": "backwards"}
        for number, row in enumerate(rows[:ROWS])
    ]
    forwards = [{**row, "difficulty": "forwards"} for row in rows[ROWS:]]
    for name, content in {"rows": rows, "dealt": dealt, "planted": planted, "forwards": forwards}.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")


def backwards(row: dict[str, str]) -> dict[str, str]:
    """Return a row whose answer has its words in reverse order."""
    return {**row, "completion": " ".join(reversed(row["completion"].split()))}


def configuration(case: Case, order: str, index: int, work: Path) -> FinetuneConfig:
    """Return the configuration of one run; `index` counts the seeds."""
    words = (
        *(f"output={work / case.name}", f"cache={work}", f"label={order}", "device=cpu", "cpu_ranks=1"),
        *("zero.stage=0", f"data.max_length={MAX_LENGTH}", f"data.validation_examples={HELD_OUT}"),
        *("data.validation_share=0.5", f"curriculum.order={order}", "curriculum.use=required"),
        *(f"training.steps={STEPS}", f"training.global_batch_size={BATCH}", f"training.micro_batch_size={BATCH}"),
        *(f"training.learning_rate={RATE}", "training.validate_every_steps=20", f"checkpoint.interval={STEPS}"),
        *case.overrides,
    )
    return with_seeds(resolve_tuning("full_tiny", overrides=words), SEEDS, index)


def train_all(configs: Sequence[FinetuneConfig], at_once: int, work: Path) -> None:
    """Train each run in a process of its own, so many at once; after a failure those that run are waited for."""
    import deepspeed  # noqa: F401, imported once for all
    import trl

    _ = trl.SFTTrainer
    model = find_model("tiny", work)
    waiting, running, failed = list(configs), dict[int, FinetuneConfig](), list[str]()
    while running or (waiting and not failed):
        while waiting and not failed and len(running) < at_once:
            config = waiting.pop(0)
            running[forked(config, model)] = config
        pid, status = os.wait()
        config = running.pop(pid)
        if code := os.waitstatus_to_exitcode(status):
            failed.append(f"{OutputFolder.of_repeat(config).path}: the run ended with {code}: see said.txt there")
        left = len(waiting) + len(running)
        print(f"{len(configs) - left} of {len(configs)} runs, the last {config.output}, {config.label}", flush=True)
    if failed:
        raise SystemExit("; ".join(failed))


def forked(config: FinetuneConfig, model: str) -> int:
    """Start a run in a child of this process, and return its process id."""
    folder = OutputFolder.of_repeat(config)
    folder.path.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (folder.path / "said.txt").open("wb") as said, socket.socket() as free:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            free.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "1"}
        os.environ |= {**place, "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        from efficientbench.finetuning.rank import tune_rank

        planned = PlannedTuning(config, Site(find_device(config.device), None, folder), model, world=1)
        job = FineTuning().job(FineTuning().prepare(planned), folder, node=0, resume=None)
        job.write(folder.config)
        code = int(tune_rank(job, Rank(0, 0, HeartbeatWriter(), lambda: False)))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def curve(record: RunRecord, level: str | None = None) -> LossCurve:
    """Return a run's held-out losses; `level`: of this level's examples."""
    points = record.finetuning["held_out"]
    return LossCurve(
        int(record.config["training"]["seed"]),
        tuple(
            (int(point["supervised_tokens"]), float(point["loss"] if level is None else point["by_level"][level]))
            for point in points
        ),
    )


Curves = dict[str, list[LossCurve]]
Found = dict[str, Effect]


def differences(case: Case, records: dict[str, list[RunRecord]]) -> Found:
    """Return each difference of a case, with p values that are corrected for their number."""
    found = effects({order: [curve(each) for each in runs] for order, runs in records.items()})
    if case.name == "steps":
        for level in LEVELS:
            sides = ([curve(each, level) for each in records[order]] for order in ("paced", "shuffled"))
            found[f"order {level}"] = effect(*sides)
    return {f"{case.name} {name}": each for name, each in found.items()}


NAMES = {
    "steps order": "by steps: paced − shuffled",
    "steps order explain": "the same, held-out rows of fewest steps",
    "steps order reasoning": "the same, of a middle number",
    "steps order topology": "the same, of most steps",
    "steps mixture": "by steps: shuffled − random",
    "steps difficulties": "by steps: paced − random_levels",
    "steps reversal": "by steps: reversed − shuffled",
    "dealt order": "levels dealt at random: paced − shuffled",
    "planted order": "backwards answers first: paced − shuffled",
}
JUDGED = ("steps order", "steps mixture", "steps difficulties", "steps reversal", "dealt order", "planted order")


def figure(name: str, found: Effect) -> Figure:
    # The others have intervals alone: a verdict for each would be one of many.
    verdict = f" ({found.verdict})" if name in JUDGED else ""
    interval, count = (found.low, found.high), len(found.seeds)
    return Figure(f"{NAMES[name]}{verdict}", found.difference, "nats", interval, n=count, n_of="paired seeds")


def final_loss(order: str, runs: Sequence[RunRecord]) -> Figure:
    """Return the mean held-out loss at the end, of each run after its own loss tokens."""
    losses = [curve(each).points[-1][1] for each in runs]
    return Figure(f"by steps, {order}: loss at the end", statistics.mean(losses), "nats", n=len(runs), n_of="runs")


def failed_controls(found: Found) -> list[str]:
    """Return what must be and is not: a difference of the planted order, none of meaningless levels."""
    dealt, planted = found["dealt order"], found["planted order"]
    problems = []
    if dealt.verdict != "no difference measurable":
        problems.append(f"levels dealt at random: {dealt.verdict}")
    if not planted.verdict.endswith("lower"):
        problems.append(f"the planted order was not found: {planted.verdict}")
    return problems


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--gsm8k", type=Path, required=True, help="rows of GSM8K's training split, JSONL")
    parser.add_argument("--seeds", type=int, default=FEWEST_SEEDS, help=f"runs of each order, {FEWEST_SEEDS} or more")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="runs at once; losses stay")
    parser.add_argument("--work", type=Path, default=Path("output/curriculum"), help="where everything goes")
    arguments: argparse.Namespace = parser.parse_args()
    if arguments.seeds < FEWEST_SEEDS:
        parser.error(f"--seeds {arguments.seeds}: fewer than {FEWEST_SEEDS} give no verdict")
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    write_rows(arguments.gsm8k, work)
    # By seed, so that a call that is cut short has whole pairs.
    runs = [
        (case, order, configuration(case, order, index, work))
        for index, case in itertools.product(range(arguments.seeds), cases(work))
        for order in case.orders
    ]
    from efficientbench.devices.registry import find_device

    name = find_device("cpu").names()[0]
    train_all(
        [config for _, _, config in runs if not is_complete(OutputFolder.of_repeat(config), config, name)],
        arguments.at_once,
        work,
    )
    found: Found = {}
    figures: dict[str, Figure] = {}
    for case in cases(work):
        records = {
            order: [
                read_record(OutputFolder.of_repeat(config).record)
                for each, own, config in runs
                if (each, own) == (case, order)
            ]
            for order in case.orders
        }
        found |= differences(case, records)
        if case.name == "steps":
            figures |= {f"loss {order}": final_loss(order, own) for order, own in records.items()}
    figures |= {name: figure(name, found[name]) for name in NAMES}
    conditions = (
        f"a Qwen2 of 4 layers of width 64 from random weights, all of it trained; {ROWS:,} rows of GSM8K of at most "
        f"{MOST_CHARACTERS} characters, {HELD_OUT} held out, {STEPS} steps of {BATCH} rows, float32; differences of "
        "held-out losses per supervised token at equal loss tokens, paired by seed, Student's t; verdicts of one case "
        "are corrected for their number"
    )
    problems = failed_controls(found)
    report(__file__, argparse.Namespace(write=arguments.write and not problems), figures, conditions)
    if problems:
        raise SystemExit("; ".join(["a control failed, and nothing is written", *problems]))


if __name__ == "__main__":
    main()
