"""Files of every format that needs no torch: written by one Python, read by another.

    python -m support.every_format write FOLDER
    python -m support.every_format read FOLDER OWN      FOLDER: of another Python; OWN: what this one has written

They are a tokenizer, tokens, conversations, examples, configurations, records, reports, evaluations, a sweep's
queue and a manifest. Reading exits with 1 and names what differs. Token files and reports must have the same bytes.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
from support.generated import generation
from support.repository import ROOT
from support.synthetic_runs import matrix_runs

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.evaluation.results import ResultFile, write_summary
from efficientbench.evaluation.task import ItemResult, Summary
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.examples.examples import joined, read_examples, write_examples
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.metrics.records.generation.generation import read_generation, write_generation
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.records.sinks.steplog import StepLog, read_steps
from efficientbench.sweep.queue import Queue, State
from efficientbench.training.checkpoints.hashing import File
from efficientbench.training.checkpoints.manifest import Manifest, read_manifest

ORDER = [3, 0, 2, 1]
HEADER = {"task": "made up", "seed": 1}
RESULT = ItemResult("1", "0" * 64, "vier", None, (1.5, None), {"café": [1, 2.5]})
STATE = State("gqa", "failed", "0" * 64, ["run", "gqa", "名=1"], "gqa", kind="non_finite", reason="NaN")
STEP = {"step": 1, "loss": 2.0000000000000004, "grad_norm": float("nan")}
MANIFEST = Manifest(
    *(4, False, "everything", {"seed": 1}, ["data"], {"tp": 2}, "v1", 0, 4.0, None, {"名": [1.5, None]}),
    files={"__0_0.distcp": File("0" * 64, 7)},
)
SAME = ("data/bpe/tokenizer.json", "data/*.bin", "data/*.idx")
REPORTS = ("report.csv", "report.md")


def data_tools(*words: object) -> None:
    """Run a command of `efficientbench-data`; exit where it fails."""
    _call("efficientbench.data_tools", *words)


def _call(module: str, *words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        sys.exit(f"{module} {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def write_data(folder: Path) -> None:
    """Write texts as JSONL and Parquet, conversations, and what is made of them: a tokenizer and two pairs."""
    folder.mkdir(parents=True)
    texts = [f"Document {number}: naïve café 词元 {'some text and more ' * (number % 40)}" for number in range(400)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:200]))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[200:]}), folder / "text.parquet")
    turns = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": text[:30]}]
        for text in texts
    ]  # fmt: skip
    (folder / "rows.jsonl").write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    (folder / "mixture.yaml").write_text("tasks: [{task: messages, path: rows.jsonl}]")
    inputs, bpe = (folder / "text.jsonl", folder / "text.parquet"), folder / "bpe"
    data_tools("train-tokenizer", *inputs, "--vocab-size", 512, "--chat", "--output", bpe)
    data_tools("tokenize", *inputs, "--tokenizer", bpe, "--output", folder / "tokens")
    data_tools("chat", folder / "mixture.yaml", "--tokenizer", bpe, "--output", folder / "chat")
    examples = joined([([number, number + 1], [False, True]) for number in range(4)])
    write_examples(folder / "examples.npz", examples, examples, *(pyarrow.array(ORDER).to_numpy(),) * 2)


def write(folder: Path) -> None:
    """Write every format."""
    write_data(folder / "data")
    runs = folder / "runs"
    for run in matrix_runs():
        write_record(run, runs / run.run / "record.json")
    write_generation(generation("gqa"), runs / "gqa_1.5B" / "generation.json")
    _call("efficientbench.cli", "report", runs)
    (folder / "run.json").write_text(resolve("moe_1.5Bx8").model_dump_json())
    (folder / "tuning.json").write_text(resolve_tuning("lora_7B").model_dump_json())
    log = StepLog(folder / "steps.jsonl")
    log.write("step", STEP)
    log.close()
    with ResultFile(folder / "evaluation" / "task.jsonl", HEADER) as results:
        results.append([RESULT])
    write_summary(folder / "evaluation" / "task.json", HEADER, 1, Summary({"accuracy": 0.5}))
    queue = Queue(folder)
    queue.make()
    queue.write(STATE)
    (folder / "checkpoint").mkdir()
    MANIFEST.write(folder / "checkpoint")


def read(folder: Path, own: Path) -> None:
    """Read every format, and compare it with what this Python writes; exit where it differs."""
    for pair in ("tokens", "chat"):
        data_tools("verify", folder / "data" / pair)
    train, _, order, _ = read_examples(folder / "data" / "examples.npz")
    with ResultFile(folder / "evaluation" / "task.jsonl", HEADER) as results:
        answers = dict(results.results)
    records = sorted((folder / "runs").glob("*/record.json"))
    generated = folder / "runs" / "gqa_1.5B" / "generation.json"
    again = own / f"report of {folder.name}"
    shutil.copytree(folder / "runs", again, ignore=shutil.ignore_patterns("report*", "hparams"))
    _call("efficientbench.cli", "report", again)
    found: dict[str, Callable[[], bool]] = {
        "examples": lambda: (len(train), order.tolist()) == (4, ORDER),
        "records": lambda: all(
            read_record(each).model_dump(mode="json") == json.loads(each.read_bytes()) for each in records
        ),
        "reports": lambda: all(
            (folder / "runs" / name).read_bytes() == (again / name).read_bytes() for name in REPORTS
        ),
        "generation": lambda: read_generation(generated).model_dump(mode="json") == json.loads(generated.read_bytes()),
        "run": lambda: RunConfig.model_validate_json((folder / "run.json").read_bytes()) == resolve("moe_1.5Bx8"),
        "tuning": lambda: (
            FinetuneConfig.model_validate_json((folder / "tuning.json").read_bytes()) == resolve_tuning("lora_7B")
        ),
        "steps": lambda: read_steps(folder / "steps.jsonl") == read_steps(own / "steps.jsonl"),
        "evaluation": lambda: answers == {RESULT.item: RESULT},
        "queue": lambda: Queue(folder).read(STATE.id) == STATE,
        "manifest": lambda: read_manifest(folder / "checkpoint") == MANIFEST,
    }
    for pattern in SAME:
        for path in own.glob(pattern):
            there = folder / path.relative_to(own)
            found[str(there)] = lambda here=path, there=there: here.read_bytes() == there.read_bytes()  # type: ignore[misc]
    if wrong := [name for name, holds in found.items() if not holds()]:
        sys.exit(f"Python {platform.python_version()} finds other contents in {folder}: {', '.join(wrong)}")
    print(f"Python {platform.python_version()} reads all of {folder.name}: {len(found)} comparisons")


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*map(Path, sys.argv[2:]))
