"""Every format that is read: a file of each, and what reads it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from support.cells import write_tokens
from support.configs import tiny
from support.core_bundle import write_bundle
from support.generated import generation, row
from support.synthetic_runs import gpu_run
from support.text_files import TEXTS, read_documents, write_kind

from efficientbench.basics.errors import CheckpointError, ConfigError, DataError, MetricsError
from efficientbench.basics.files import remembered_sha256
from efficientbench.basics.foreign import MOST_BYTES
from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.config.matrix import MATRIX, load_matrix
from efficientbench.data_tools.chat.conversations import RowError
from efficientbench.data_tools.chat.mixture import read_mixture
from efficientbench.data_tools.download.download_record import Record
from efficientbench.data_tools.download.download_record import load_record as load_downloads
from efficientbench.data_tools.rows import FileRows
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer
from efficientbench.data_tools.tokenizing.building import read_plan
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.inspection import verify_pair
from efficientbench.data_tools.tokens.manifest import TokenizeRecord, load_checksums, load_corpus, load_record
from efficientbench.data_tools.tokens.splitting import split_documents
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.evaluation.results import ResultFile, write_summary
from efficientbench.evaluation.task import ItemResult, Summary
from efficientbench.export.foreign_config import read_config
from efficientbench.finetuning.base_model import find_model
from efficientbench.finetuning.base_model import load_tokenizer as load_chat_tokenizer
from efficientbench.finetuning.config import TINY_SHAPE
from efficientbench.finetuning.examples.rows import read_rows
from efficientbench.finetuning.planning.shapes import shape_of
from efficientbench.generation.command import read_prompts
from efficientbench.launchers.processes.failure import Failure, read_failure
from efficientbench.launchers.processes.heartbeat import Beat, read_beat
from efficientbench.metrics.analysis.paired import pair_evaluations
from efficientbench.metrics.records.generation.generation import read_generation, write_generation
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.records.sinks.steplog import StepLog, read_steps
from efficientbench.metrics.records.sinks.tensorboard import TensorBoardLog, cut_scalars
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.sections.failures import load_failures
from efficientbench.metrics.sensors import hardware
from efficientbench.metrics.sensors.replay import read_trace as read_readings
from efficientbench.planning.calibration import Calibration, Point, read_calibration, write_calibration
from efficientbench.profiling.trace import read_trace
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.trained import TrainedRun
from efficientbench.sweep.progress import progress_of
from efficientbench.sweep.queue import Queue, State
from efficientbench.sweep.task import take_turns
from efficientbench.training.checkpoints.manifest import Manifest, check_sizes, read_manifest, seal, verify

MESSAGES = (ConfigError, DataError, MetricsError, CheckpointError)


@dataclass(frozen=True)
class Format:
    """A file, and what reads it."""

    path: Path
    read: Callable[[], object]
    checked: bool = False
    """Whether a checksum covers every byte."""


def pair(folder: Path) -> dict[str, Format]:
    """A tokenized corpus: every file of it."""
    train_tokenizer(TEXTS, 400, folder / "bpe")
    source = write_kind(folder, "jsonl", TEXTS[:50])
    corpus = tokenize_files([source], folder / "tokens", folder / "bpe")

    def verify() -> object:
        return verify_pair(corpus.prefix)

    def manifest() -> object:
        path = corpus.manifest
        return load_corpus(path), load_checksums(path), load_record(path, TokenizeRecord)

    names = ("tokens.bin", "tokens.idx", "tokens.token_bytes.npy", "tokens.tokenizer/tokenizer.json")
    formats = {name: Format(folder / name, verify, checked=True) for name in names}
    formats["tokens.manifest.json"] = Format(corpus.manifest, manifest)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        formats[name] = Format(folder / "bpe" / name, lambda: load_tokenizer(folder / "bpe").vocab_size)
    plan = {"tokenizer": "a", "inputs": [["/a", "b"]], "cuts": [["/a", 0, 9]]}
    (folder / "plan.json").write_text(json.dumps(plan))
    formats["plan.json"] = Format(folder / "plan.json", lambda: read_plan(folder / "plan.json", "begin again"))
    return formats


def texts(folder: Path) -> dict[str, Format]:
    """Text in every kind of file."""
    (folder / "mixture.yaml").write_text("seed: 1\ntasks:\n  - {task: gsm8k, path: /a/b, rows: 3, epochs: 2}\n")
    formats = {"mixture": Format(folder / "mixture.yaml", lambda: read_mixture(folder / "mixture.yaml"))}
    for kind in ("jsonl", "jsonl.gz", "jsonl.zst", "parquet"):
        path = write_kind(folder, kind, TEXTS[:20])
        formats[kind] = Format(path, lambda path=path: read_documents(path))  # type: ignore[misc]
    (folder / "data.txt").write_text("\n\n".join(TEXTS[:20]))
    formats["txt"] = Format(folder / "data.txt", lambda: read_documents(folder / "data.txt"))
    return formats


def caches(folder: Path) -> dict[str, Format]:
    """What earlier runs have left in a cache."""
    prefix, cache = folder / "text", folder / "cache"
    random = np.random.default_rng(0)
    write_tokens(prefix, [random.integers(0, 500, 20) for _ in range(40)])

    def split() -> object:
        (found,) = split_documents([prefix], (8, 1, 1), 500, cache)
        return [part.tolist() for part in (found.training, found.validation, found.test)], found.duplicates

    def split_anew() -> object:
        path.unlink(missing_ok=True)
        return split()

    split()
    (path,), (hashes,) = cache.glob("*.npz"), cache.glob("hashes-*.bin")
    formats = {"split": Format(path, split, checked=True), "hashes": Format(hashes, split_anew, checked=True)}
    remembered_sha256([hashes], folder / "sums")
    formats["remembered checksums"] = Format(
        folder / "sums" / "checksums.json", lambda: remembered_sha256([hashes], folder / "sums")
    )
    record = Record(folder, "owner/name")
    (folder / ".download").mkdir()
    record.save()
    points = tuple(Point(work, 9.0, 1, 2.0, 1.0, 3.0, "fp32") for work in ("matmul", "attention", "memory"))
    rates, conditions = folder / "calibration_1.json", {"device": "a", "type": "cpu", "torch": "2"}
    write_calibration(rates, Calibration(conditions, "now", "run", 5, points, {}))
    formats["calibration"] = Format(rates, lambda: read_calibration(rates))
    formats["download record"] = Format(folder / ".download" / "record", lambda: load_downloads(folder, "owner/name"))
    return formats


def evaluations(folder: Path) -> dict[str, Format]:
    """What `evaluate` and `generate --measure` write."""
    header = {"task": "passkey", "step": 4, "settings": {"limit": 2}}
    results = [ItemResult(f"a/{number}", "0" * 64, 3, True, (0.5, None), {"length": 9}) for number in range(4)]
    documents = [ItemResult(f"{n}", "0" * 64, None, None, None, {"loss_sum": 3.5, "tokens": 7}) for n in range(4)]
    for name, items in (("core", results), ("loss", documents)):
        with ResultFile(folder / "evaluation" / f"{name}.jsonl", header) as file:
            file.append(items)
    parts = {"trained_tokens": 8, "grid": [{"length": 8, "depth": 0.5, "items": 2, "right": 1}], "ranges": []}
    summary = Summary({"accuracy": 0.5, "beyond": None}, {"beyond": "no such length"}, parts)
    write_summary(folder / "evaluation" / "passkey.json", header, 4, summary)
    generation_path = folder / "generation.json"
    write_generation(generation("gqa", rows=[row("gqa", 128, 8)]), generation_path)

    def gone_on(path: Path) -> object:
        before = path.read_bytes() if path.is_file() and path.stat().st_size < MOST_BYTES else None
        try:
            with ResultFile(path, header) as file:
                return dict(file.results)
        finally:
            if before is not None:
                path.write_bytes(before)

    found = {"evaluation": Format(folder / "evaluation" / "passkey.json", lambda: build_report(folder))}
    for name in ("core", "loss"):
        path = folder / "evaluation" / f"{name}.jsonl"
        found[f"items of {name}"] = Format(path, lambda: pair_evaluations(folder, folder))
        found[f"items of {name} to go on with"] = Format(path, lambda path=path: gone_on(path))  # type: ignore[misc]
    found["generation"] = Format(generation_path, lambda: read_generation(generation_path))
    found["reported generation"] = Format(generation_path, lambda: build_report(folder))
    return found


def runs(folder: Path) -> dict[str, Format]:
    """What a run and its launcher write."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    whole = Manifest(3, False, "everything", {"a": [1]}, ["x"], {"tp": 1}, "f", 0, 3.0, None, {"losses": [1.5]})
    whole.write(checkpoint)
    formats = {"checkpoint": Format(checkpoint / "manifest.json", lambda: read_manifest(checkpoint), checked=True)}
    formats["checkpoint's files"] = Format(checkpoint / "manifest.json", lambda: check_sizes(checkpoint), checked=True)
    log = StepLog(folder / "steps.jsonl")
    for step in range(5):
        log.write("step", {"step": step, "loss": 2.5, "tokens": 9})
    log.close()
    formats["steps"] = Format(folder / "steps.jsonl", lambda: read_steps(folder / "steps.jsonl"))
    formats["last step"] = Format(folder / "steps.jsonl", lambda: progress_of(OutputFolder(folder)))
    (folder / "failure.json").write_text(json.dumps(asdict(Failure("crash", "why", rank=3, time_s=1.0))))
    formats["failure"] = Format(folder / "failure.json", lambda: read_failure(folder / "failure.json"))
    (folder / "0.heartbeat").write_text(json.dumps(asdict(Beat(3, "training", {"dp": 2}))))
    formats["heartbeat"] = Format(folder / "0.heartbeat", lambda: read_beat(folder / "0.heartbeat", "R"))
    queue = Queue(folder)
    queue.make()
    queue.write(State("run", "failed", "c", ["efficientbench"], "/a", reason="why"))
    formats["queue"] = Format(folder / "sweep" / "queue" / "run.json", lambda: queue.read("run"))
    trace = folder / "trace.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": [{"ph": "X", "name": "a"}, {"ph": "M"}]}).encode()))
    formats["trace"] = Format(trace, lambda: read_trace(trace))
    record = gpu_run("moe", "0.5B", steps=40).model_copy(update={"timelines": []})
    write_record(record, folder / "reported" / "record.json")
    formats["record"] = Format(folder / "reported" / "record.json", lambda: build_report(folder / "reported"))
    shutil.copy(folder / "failure.json", folder / "reported")
    formats["reported failure"] = Format(
        folder / "reported" / "failure.json", lambda: load_failures(folder / "reported")
    )
    formats |= evaluations(folder / "reported")
    config = tiny("gqa_1.5B")
    layout, budget = Layout.of(config, 1, 1, oversubscribe=True), plan_budget(config, 1000)
    Job(config, layout, budget, (), folder).write(folder / "config.json")
    formats["job"] = Format(folder / "config.json", lambda: TrainedRun.read(folder).job)
    take_turns([], folder)
    formats["order"] = Format(folder / "order.json", lambda: take_turns([], folder))
    device = {"uuid": "G", "name": "GPU", "memory_capacity_bytes": 8, "memory_kind": "driver"}
    readings = [{"device": device, "scope": "gpu"}, {"device": "G", "time_s": 1.0, "power_w": 2.0}]
    (folder / "readings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in readings))
    formats["readings"] = Format(folder / "readings.jsonl", lambda: len(read_readings(folder / "readings.jsonl")))
    with closing(TensorBoardLog(folder / "tensorboard")) as scalars:
        scalars.scalars("step", 1, {"train/loss": 2.0})
    (events,) = (folder / "tensorboard").iterdir()
    formats["scalars"] = Format(events, lambda: len(cut_scalars(folder / "tensorboard", 1, 9)) < 2)
    shutil.copy(MATRIX, folder / "matrix.yaml")
    formats["matrix"] = Format(folder / "matrix.yaml", lambda: load_matrix(folder / "matrix.yaml"))
    return formats


def tunings(folder: Path) -> dict[str, Format]:
    """What a fine-tuning reads: its rows, its base model, its adapter."""
    rows = [{"prompt": f"{number} and 1?", "completion": f"{number + 1}"} for number in range(6)]
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")

    def read(name: str) -> Format:
        return Format(folder / name, lambda: read_rows(str(folder / name), "difficulty", ("one",)))

    formats = {f"{kind} of a fine-tuning": read(f"rows.{kind}") for kind in ("json", "jsonl", "parquet")}
    base = folder / "base"
    train_tokenizer(TEXTS, 400, base)
    (base / "config.json").write_text(json.dumps(TINY_SHAPE))
    save_file({"a": torch.ones(2)}, base / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        formats[f"base's {name}"] = Format(base / name, lambda: found_base(base, folder))
    formats["base's shape"] = Format(base / "config.json", lambda: shape_of(str(base)))
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base), "r": 4}))
    save_file({"lora_A": torch.ones(2)}, adapter / "adapter_model.safetensors")
    seal(adapter, Manifest(1, False, "weights", {}, [], {}, "", 0, 1, None, {}))
    for name in ("adapter_config.json", "adapter_model.safetensors", "manifest.json"):
        formats[f"adapter's {name}"] = Format(adapter / name, lambda: verify(adapter))
    return formats


def found_base(base: Path, cache: Path) -> object:
    """The base model as a fine-tuning looks at it before its ranks start."""
    model = find_model(str(base), cache)
    return model, len(load_chat_tokenizer(model))


def asked(folder: Path) -> dict[str, Format]:
    """Further files that a user names, or that lie in a folder which a user names."""
    write_bundle(folder / "core", ["copa"])
    rows = next((folder / "core" / "eval_data").rglob("*.jsonl"))
    names = {"core's tasks": "core.yaml", "core's baselines": "eval_meta_data.csv", "core's rows": rows}
    formats = {
        name: Format(folder / "core" / path, lambda: read_bundle(folder / "core", None)) for name, path in names.items()
    }
    (folder / "prompts.txt").write_text("one\ntwo\n")
    formats["prompts"] = Format(folder / "prompts.txt", lambda: read_prompts(None, folder / "prompts.txt"))
    (folder / "chat.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (folder / "chat.csv").write_text("a,b\nc,d\n")
    for kind in ("jsonl", "csv"):
        path = folder / f"chat.{kind}"
        formats[f"{kind} of conversations"] = Format(path, lambda path=path: read_conversations(path))  # type: ignore[misc]
    (folder / "devices.yaml").write_text("{name: X, memory_bandwidth_gb_s: 1, in_node_gb_s: 1, peak_tflops: {bf16: 1}}")
    formats["devices"] = Format(folder / "devices.yaml", lambda: own_devices(folder / "devices.yaml"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    formats["imported model"] = Format(folder / "config.json", lambda: read_config(folder, "1B")[0].name)
    return formats


def read_conversations(path: Path) -> object:
    """All rows of a file."""
    rows = FileRows([path], ("first", "second"))
    try:
        return list(rows.read(np.arange(len(rows))))
    except RowError as error:
        raise DataError(f"{path}: {error}") from None


def own_devices(path: Path) -> object:
    """The rows of devices that a variable names the file of."""
    hardware._own_table.cache_clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(hardware.OWN_ROWS, str(path))
        return hardware._rows("devices")


def every_format(folder: Callable[[str], Path]) -> dict[str, Format]:
    """A file of every format, in folders of these names."""
    found: dict[str, Format] = {}
    for make in (pair, texts, caches, runs, tunings, asked):
        found |= make(folder(make.__name__))
    return found


NAMES = (
    *("tokens.bin", "tokens.idx", "tokens.token_bytes.npy", "tokens.tokenizer/tokenizer.json", "tokens.manifest.json"),
    *("tokenizer.json", "tokenizer_config.json", "plan.json", "jsonl", "jsonl.gz", "jsonl.zst", "parquet", "txt"),
    *("split", "download record", "checkpoint", "checkpoint's files", "steps", "last step", "failure", "heartbeat"),
    *("queue", "trace", "record", "matrix", "hashes", "remembered checksums", "reported failure", "job", "order"),
    *("readings", "scalars", "calibration", "mixture", "evaluation", "generation", "reported generation"),
    *("items of core", "items of loss", "items of core to go on with", "items of loss to go on with"),
    *("json of a fine-tuning", "jsonl of a fine-tuning", "parquet of a fine-tuning", "base's config.json"),
    *("base's tokenizer.json", "base's tokenizer_config.json", "base's model.safetensors", "base's shape"),
    *(
        "adapter's adapter_config.json",
        "adapter's adapter_model.safetensors",
        "adapter's manifest.json",
        "core's tasks",
    ),
    *("core's baselines", "core's rows", "prompts", "jsonl of conversations"),
    *("csv of conversations", "devices", "imported model"),
)
"""The names of all formats, so that each is a test of its own."""
