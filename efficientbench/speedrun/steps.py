"""The steps of a pipeline: the commands that a user would type, and what shows that a step is complete."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.foreign import read_whole
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.chat.find_task import EVALUATED, TASKS
from efficientbench.data_tools.tokens.manifest import manifest_path
from efficientbench.evaluation.chat.questions import has_rows
from efficientbench.metrics.analysis.paired import FOLDER as EVALUATION
from efficientbench.metrics.records.generation.generation import GENERATION_NAME, generation_of
from efficientbench.metrics.records.record import RECORD_NAME
from efficientbench.metrics.records.stored import current_files
from efficientbench.planning.plan import known_corpora
from efficientbench.running.output_folder import OutputFolder
from efficientbench.speedrun.check import is_trained
from efficientbench.speedrun.recipe import run_name, write_matrix
from efficientbench.speedrun.request import BASE, RL, SFT, Request

CORE = "core"
BOOT = Path("/proc/sys/kernel/random/boot_id")
TOOLS, DATA_TOOLS = "efficientbench", "efficientbench-data"


class Kind(Enum):
    """Which nodes run a step, where several share the folder."""

    CHECK = auto()
    """Each node."""
    PREPARE = auto()
    """The first node that comes to it."""
    TRAIN = auto()
    """All nodes together."""
    MEASURE = auto()
    """The first node."""


@dataclass(frozen=True)
class Step:
    """One command, or the reason why there is none."""

    name: str
    kind: Kind
    command: tuple[str, ...] = ()
    """The command as a user types it."""
    made: Path | None = None
    """File or folder that exists when the step is complete; None: the command itself skips what is complete."""
    mark: Callable[[], str | None] | None = None
    """Returns the text that is written into `made` after the command; the step is complete while `made` holds it, and
    never where it is None."""
    is_done: Callable[[], bool] | None = None
    """Returns whether the step is complete; used instead of `made`."""
    left_out: str | None = None
    """Why the step is skipped; None where it has a command."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        if self.is_done is not None:
            return self.is_done()
        if self.made is None or not self.made.exists():
            return False
        return self.mark is None or read_whole(self.made).decode(errors="replace") == self.mark()


@dataclass(frozen=True)
class Pipeline:
    """All steps, in order, and the chat models that they make."""

    steps: tuple[Step, ...]
    chat: tuple[Path, ...]
    """Folder of each architecture's last run; empty where no stage trains a chat model."""
    runs: tuple[RunConfig, ...]
    """The configurations of all runs, in their order."""


def make_pipeline(request: Request) -> Pipeline:
    """Return all steps, and write the matrix files of the runs.

    Raises:
        ConfigError: a variant or a key is unknown, or a run's configuration is not valid.
        DataError: as `_check_decided`.
        OSError: the folder cannot be written.
    """
    steps = [*_prepared(request)]
    chat: list[Path] = []
    runs: list[RunConfig] = []
    for variant in request.variants or (None,):
        of_variant, configs = _trained(request, variant)
        steps += of_variant
        runs += configs
        chat.append(OutputFolder.of_repeat(configs[-1]).path)
    if request.mode == "dlc":
        # The nodes train one stage after the other, while none of them waits for an evaluation.
        steps.sort(key=lambda step: step.kind is Kind.MEASURE)
    price = () if request.price_per_hour is None else ("--price-per-hour", str(request.price_per_hour))
    folder = request.work / "runs"
    words = (TOOLS, "report", str(folder), *price)
    mark = partial(_report_mark, words, folder)
    steps.append(Step("report", Kind.MEASURE, words, request.work / "report.complete", mark))
    return Pipeline(tuple(steps), tuple(chat) if SFT in request.stages else (), tuple(runs))


def _prepared(request: Request) -> Iterator[Step]:
    """Yield the steps before the first run."""
    work, tokenizer = request.work, request.work / "tokenizer"
    # After a reboot, or on another machine, the check runs again.
    checked = work / f"checked_{request.device}_{os.uname().nodename}.txt"
    boot = partial(BOOT.read_text, encoding="utf-8")
    yield Step("check", Kind.CHECK, (TOOLS, "doctor", "--device", request.device), checked, boot)
    text = request.text.resolve() if request.text else work / ("sample.jsonl" if request.smoke else "text")
    if request.text is None and request.smoke:
        yield _make("text", text, "sample", "--output", text)
    elif request.text is None:
        yield _download("text", text, "--num-files", request.files)
    vocabulary = ("--vocab-size", request.tokens, "--chat")
    yield _make("tokenizer", tokenizer, "train-tokenizer", text, *vocabulary, "--output", tokenizer)
    pair = tokens(request, BASE)
    made_by = ("--tokenizer", tokenizer, "--output")
    yield _make("tokens of the text", manifest_path(pair), "tokenize", text, *made_by, pair)
    for stage in request.stages[1:3]:
        pair, mixture = tokens(request, stage), request.mixture(stage)
        yield _make(f"conversations of {stage}", manifest_path(pair), "chat", mixture, *made_by, pair)
    if RL in request.stages and request.task_data is None:
        yield _download("questions of rl", work / "gsm8k", "openai/gsm8k", "--config", "main")


def _make(name: str, made: Path, *words: object) -> Step:
    """Return a step that makes a file or a folder, which appears when it is complete."""
    return Step(name, Kind.PREPARE, (DATA_TOOLS, *map(str, words)), made)


def _download(name: str, folder: Path, *words: object) -> Step:
    """Return a step that fills a folder; a file beside the folder marks it as complete."""
    command = (DATA_TOOLS, "download", *map(str, words), "--output", str(folder))
    return Step(name, Kind.PREPARE, command, folder.with_name(f"{folder.name}.complete"), lambda: "complete\n")


def tokens(request: Request, stage: str) -> Path:
    """Return the tokenized pair that a stage reads; RL reads SFT's, for its tokenizer and its validation."""
    return request.work / "tokens" / {BASE: "text", RL: SFT}.get(stage, stage)


def _trained(request: Request, variant: str | None) -> tuple[list[Step], list[RunConfig]]:
    """Return the steps that train and evaluate an architecture, and the configurations of its runs."""
    matrix = write_matrix(request, variant)
    steps: list[Step] = []
    runs: list[RunConfig] = []
    before: Path | None = None
    for stage in request.stages:
        name = run_name(stage, variant, request.layers)
        keys = _keys(request, stage, before)
        config = resolve(name, request.smoke, keys, matrix)
        _check_decided(request, stage, config)
        runs.append(config)
        before = OutputFolder.of_repeat(config).path
        # --repeat skips a complete run instead of training again.
        smoke = ("--smoke",) if request.smoke else ()
        words = (TOOLS, "run", name, request.mode, *smoke, "--matrix", str(matrix), "--repeat", "1", *keys)
        steps.append(Step(name, Kind.TRAIN, words, is_done=partial(is_trained, request, config)))
        steps += _evaluated(request, stage, name, before)
    assert before is not None
    if request.generate:
        words = (TOOLS, "generate", str(before), "--measure")
        steps.append(Step(f"generation of {name}", Kind.MEASURE, words, is_done=partial(is_measured, before)))
    return steps, runs


def is_measured(folder: Path) -> bool:
    """Return whether generation was measured with a run's trained model; a run that starts anew sets that aside."""
    found = generation_of(folder)
    return found is not None and found.status == "completed" and found.weights != "random"


def _keys(request: Request, stage: str, before: Path | None) -> list[str]:
    """Return the overrides of a stage's run; the user's come last, and replace ours."""
    work = request.work
    keys = [f"data.path={tokens(request, stage)}", f"data.cache={work / 'cache'}", f"output={work / 'runs'}"]
    keys.append(f"device={request.device}")
    if before is not None:
        keys.append(f"init.run={before}")
    if stage == RL:
        questions = request.task_data / "gsm8k" if request.task_data else work / "gsm8k" / "main"
        keys += [f"rl.questions={questions}/train*", f"rl.test_questions={questions}/test*"]
    if request.devices is not None:
        keys.append(f"parallel.dp={request.devices}")
    return [*keys, *request.overrides_of(stage)]


def _check_decided(request: Request, stage: str, config: RunConfig) -> None:
    """Refuse overrides of what other steps of the speedrun make or read.

    Raises:
        ConfigError: the run's folder or text is not one that the other steps know.
        DataError: the text's manifest is damaged.
    """
    if config.output != str(request.work / "runs"):
        raise ConfigError(f"output={config.output}: the runs of a speedrun lie in its own folder: give --work FOLDER")
    if config.data.path != str(tokens(request, stage)) and known_corpora(config.data) is None:
        raise ConfigError(
            f"{config.name}: data.path: {config.data.path} is no tokenized text; a speedrun makes its own of --data "
            "PATH, --mid FILE and --sft FILE"
        )


def _evaluated(request: Request, stage: str, run: str, folder: Path) -> Iterator[Step]:
    """Yield the evaluations of a stage: CORE of the base, the chat tasks of the others."""
    data = () if request.task_data is None else ("--data", str(request.task_data))
    limit = () if request.items is None else ("--limit", str(request.items))
    code = ("--allow-code",) if request.allow_code else ()
    wanted = (CORE,) if stage == BASE else EVALUATED
    absent = _without_core(request) if stage == BASE else _without(request)
    at_hand = ",".join(task for task in wanted if task not in absent)
    if at_hand:
        command = (TOOLS, "evaluate", str(folder), "--tasks", at_hand, *data, *limit, *code)
        made = folder / EVALUATION / "complete.txt"
        mark = partial(_evaluation_mark, command, folder, at_hand.split(","), request.task_data)
        yield Step(f"{at_hand} of {run}", Kind.MEASURE, command, made, mark)
    for task, why in absent.items():
        yield Step(f"{task} of {run}", Kind.MEASURE, left_out=why)


def _evaluation_mark(words: Iterable[str], folder: Path, tasks: Iterable[str], data: Path | None) -> str | None:
    """Return the text that marks an evaluation as complete: its command, weights, items and results; see `_marked`."""
    read = sorted([*folder.glob("checkpoint/*/manifest.json"), *(data.rglob("*") if data else ())])
    return _marked(words, read, (folder / EVALUATION / f"{task}.json" for task in tasks))


def _report_mark(words: Iterable[str], runs: Path) -> str | None:
    """Return the text that marks a report as complete: its command, records and files; see `_marked`."""
    # An evaluation and the measurement of generation write into a run's record, or beside it.
    read = sorted(path for name in (RECORD_NAME, GENERATION_NAME) for path in current_files(runs, name))
    return _marked(words, read, {runs / "report.md", *runs.glob("report*.*")})


def _marked(words: Iterable[str], read: Iterable[Path], made: Iterable[Path]) -> str | None:
    """Return a text that changes with a command, and with the size or time of a file that it reads or makes.

    Return None where one of these is absent.
    """
    lines = [shlex.join(words)]
    for path in (*read, *sorted(made)):
        if not path.exists():
            return None
        state = path.stat()
        lines.append(f"{path} {state.st_size} {state.st_mtime_ns}")
    return "\n".join(lines) + "\n"


def _without_core(request: Request) -> dict[str, str]:
    """Return CORE → why it is skipped; empty where it is evaluated."""
    if request.task_data is None:
        return {CORE: "no hub has its bundle: --task-data FOLDER, which holds it as core/ (docs/evaluation.md)"}
    missing = not (request.task_data / CORE).is_dir()
    return {CORE: f"{request.task_data / CORE} is not there"} if missing else {}


def _without(request: Request) -> dict[str, str]:
    """Return chat task → why it is skipped."""
    absent = {}
    if not request.allow_code:
        why = "it runs programs that the model writes: --allow-code allows that"
        absent = {task: why for task in EVALUATED if TASKS[task].runs_programs}
    if request.task_data is not None:
        for task in EVALUATED:
            if not has_rows(task, request.task_data):
                absent.setdefault(task, f"{request.task_data / task} is not there")
    return absent
