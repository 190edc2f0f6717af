"""How long a whole speedrun takes on this CPU, and whether its SFT lowers the loss of conversations it has not seen.

    python tests/benchmarks/speedrun.py --text TEXT --items FOLDER [--work FOLDER] [--write]

It calls `bash launchers/speedrun.sh --device cpu`, as a user would: a tokenizer of 4,096 tokens, a base of four layers,
mid-training and SFT on different rows of GSM8K, and 20 items of each evaluation that has a folder in FOLDER (gsm8k with
train.jsonl and test.jsonl; core, mmlu). An interrupted one goes on, and then says nothing about its time. Then the base
and the chat model score the conversations that SFT held out, in pairs, and the chat model answers.

It fails where a stage has fewer than 50 steps or no evaluation, SFT does not lower the loss, the chat says nothing, or
all stages together take ten minutes or more.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from replicas.places import job_environment
from support.command_line import efficientbench
from support.measured import Figure, options, report, seconds
from support.repository import ROOT

from efficientbench.metrics.formulas.student import mean_confidence_interval
from efficientbench.metrics.records.record import RunRecord, read_record

LIMIT, MID_ROWS, SFT_ROWS = 20, 3000, 1500
STEPS, MINUTES = 50, 10
"""What each stage takes at least, and all together less than."""
STAGES = ("base", "mid", "sft")
# A step changes no float32 weight by this rate: what is scored is the model that it begins with.
UNTRAINED = ("training.learning_rate=1e-12", "training.steps=15")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="text that the base learns")
    parser.add_argument("--items", type=Path, required=True, help="gsm8k, and what else is to be evaluated")
    parser.add_argument("--work", type=Path, default=Path("output/speedrun_cpu"), help="where everything goes")
    arguments = parser.parse_args()
    work: Path = arguments.work.absolute()
    new = not work.exists()
    work.mkdir(parents=True, exist_ok=True)
    command = ["bash", str(ROOT / "launchers" / "speedrun.sh"), *_words(arguments, work)]
    # All threads, as the commands choose by themselves.
    environment = {name: value for name, value in job_environment().items() if name != "OMP_NUM_THREADS"}
    minutes = seconds(lambda: subprocess.run(command, check=True, env=environment)) / 60
    folders = {stage: work / "runs" / f"{stage}_d4" / "seed_1234" for stage in STAGES}
    records = {stage: read_record(folder / "record.json") for stage, folder in folders.items()}
    steps = {stage: record.config["training"]["steps"] for stage, record in records.items()}
    assert all(record.status == "completed" and steps[stage] >= STEPS for stage, record in records.items())
    tasks = [sorted(path.stem for path in (folder / "evaluation").glob("*.json")) for folder in folders.values()]
    assert all(tasks), f"a stage was not evaluated: {tasks}"
    asked = ("chat", str(folders["sft"]), "-p", "Tom has 3 apples and buys 4. How many?")
    answer = efficientbench(*asked, expect=0).stdout
    print(answer)
    assert answer.strip(), "the chat says nothing"
    figures = _losses(_before(work, folders["base"], records["sft"]), records["sft"].validation_sequence_losses)
    if new:
        figures = {
            "time": Figure("all stages, from text to the report card", minutes, "min"),
            **{
                stage: Figure(f"of that, {stage}: from start to end", record.duration_s, "s")
                for stage, record in records.items()
            },
            **figures,
        }
    conditions = (
        f"bash launchers/speedrun.sh --device cpu: {records['base'].parameters:,} parameters, 4,096 tokens; "
        f"{', '.join(f'{stage} {count} steps' for stage, count in steps.items())}; {LIMIT} items of each evaluation "
        f"({', '.join(sorted({task for each in tasks for task in each}))}); losses: means over conversations of their "
        "mean loss per learned token, the difference paired, Student's t"
    )
    report(__file__, arguments, figures, conditions)
    if new and minutes >= MINUTES:
        sys.exit(f"it took {minutes:.1f} minutes, and is to take less than {MINUTES}")


def _words(arguments: object, work: Path) -> list[str]:
    """Write the mixtures; return the words of the speedrun."""
    text, items = (str(getattr(arguments, name).absolute()) for name in ("text", "items"))
    words = ["--device", "cpu", "--work", str(work), "--data", text, "--task-data", items, "--limit", str(LIMIT)]
    for stage, start, stop in (("mid", 0, MID_ROWS), ("sft", MID_ROWS, MID_ROWS + SFT_ROWS)):
        mixture = work / f"{stage}_mixture.yaml"
        rows = f"{items}/gsm8k/train.jsonl"
        mixture.write_text(f"tasks: [{{task: gsm8k, path: {rows}, start: {start}, stop: {stop}}}]\n")
        words += [f"--{stage}", str(mixture)]
    return words


def _before(work: Path, base: Path, chat: RunRecord) -> Sequence[float]:
    """Return the base's loss of each conversation that SFT held out."""
    output = work / "held_out"
    keys = (f"data.path={work / 'tokens' / 'sft'}", f"data.cache={work / 'cache'}", f"output={output}", "device=cpu")
    run = ("run", "sft_d4", "--matrix", str(work / "chat_d4.yaml"), "--repeat", "1", f"init.run={base}")
    efficientbench(*run, *keys, *UNTRAINED, limit_s=1200, expect=0)
    before = read_record(output / "sft_d4" / "seed_1234" / "record.json")
    assert before.validation_text == chat.validation_text
    return before.validation_sequence_losses


def _losses(before: Sequence[float], after: Sequence[float]) -> dict[str, Figure]:
    """Return the figures of held-out conversations; fail where SFT has not surely lowered their loss."""
    gains = [of_base - of_chat for of_base, of_chat in zip(before, after, strict=True)]
    interval = mean_confidence_interval(gains)
    assert interval is not None
    assert interval[0] > 0, f"SFT has not lowered the loss: {interval}"
    count, each = len(gains), "conversations"
    return {
        "base_loss": Figure("held-out loss of the base", statistics.mean(before), "nats", n=count, n_of=each),
        "sft_loss": Figure("held-out loss after SFT", statistics.mean(after), "nats", n=count, n_of=each),
        "gain": Figure("lower by", statistics.mean(gains), "nats", interval, n=count, n_of=each),
    }


if __name__ == "__main__":
    main()
