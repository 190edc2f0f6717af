"""The request for a pipeline, and the choices from which its folder was made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.basics.files import sha256, write_file
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.config.matrix import EXPERIMENTS
from efficientbench.data_tools.chat.find_task import EVALUATED, TASKS
from efficientbench.evaluation.chat.questions import check_rows, has_rows
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.evaluation.task import Options

STAGES = BASE, MID, SFT, RL = ("base", "mid", "sft", "rl")
"""The stages in their order: each begins with the weights of the one before."""
MIXTURES = {MID: EXPERIMENTS / "mid_mixture.yaml", SFT: EXPERIMENTS / "sft_mixture.yaml"}
"""Stage → its mixture of conversations from the hub, as nanochat takes them."""
SAMPLE = EXPERIMENTS / "sample"
"""Conversations, questions and items that the package carries: what a smoke speedrun learns and is evaluated on."""
CHOICES = "choices.json"
KEPT = ("text", "files", "mixtures", "task_data", "allow_code", "limit", "vocabulary", "short", "smoke")
"""Fields of a request that further models of the folder share."""


@dataclass(frozen=True)
class Request:
    """Data, models and folders of a pipeline."""

    work: Path
    """Folder for everything that the pipeline makes."""
    device: str
    """Device type."""
    text: Path | None = None
    """Text that the base model learns; None: FineWeb-Edu, or the embedded sample in a smoke speedrun."""
    files: int = 3
    """Files of FineWeb-Edu."""
    mixtures: Mapping[str, Path] = field(default_factory=dict)
    """Stage → file that names its conversations, in place of the one in `MIXTURES`, or of the sample's."""
    task_data: Path | None = None
    """Items of the evaluations, each task's in its own folder, and questions of RL; None: the hub."""
    allow_code: bool = False
    """Whether programs that the model writes may run, as HumanEval needs."""
    limit: int | None = None
    """Items of each evaluation; None: all, 20 where the pipeline is short."""
    depth: int | None = None
    """Layers, of which a smoke speedrun trains four; None: 12, or 4 where the pipeline is short."""
    vocabulary: int | None = None
    """Tokens of the vocabulary; None: 65,536, 4,096 where the pipeline is short, or 1,024 in a smoke speedrun."""
    variants: tuple[str, ...] = ()
    """Variants of matrix.yaml; empty: the architecture of chat.yaml."""
    stages: tuple[str, ...] = (BASE, MID, SFT)
    """The stages that are trained: the first ones of `STAGES`."""
    short: bool = False
    """Whether steps are few and short, as a CPU needs it."""
    smoke: bool = False
    """Whether scaled-down models learn the data that the package carries; no network is needed. Excludes `short`."""
    devices: int | None = None
    """Replicas; None: all devices."""
    generate: bool = False
    """Whether generation with the last model is measured."""
    price_per_hour: float | None = None
    mode: str = "dsw"
    """`dsw`: this machine; `dlc`: the nodes that environment variables describe."""
    overrides: tuple[str, ...] = ()
    """`key=value` for the runs of all stages, `STAGE:key=value` for those of one."""

    @property
    def layers(self) -> int:
        """Depth of the model."""
        return self.depth or (4 if self.short else 12)

    @property
    def tokens(self) -> int:
        """Size of the vocabulary."""
        return self.vocabulary or (1024 if self.smoke else 4096 if self.short else 65_536)

    @property
    def items(self) -> int | None:
        """Most items of each evaluation; None: all."""
        return self.limit or (20 if self.short else None)

    def mixture(self, stage: str) -> Path:
        """Return the file that names a stage's conversations."""
        default = SAMPLE / MIXTURES[stage].name if self.smoke else MIXTURES[stage]
        return self.mixtures.get(stage, default).absolute()

    def overrides_of(self, stage: str) -> list[str]:
        """Return the overrides of a stage's run."""
        return [override for named, override in map(self._split, self.overrides) if named in (None, stage)]

    def check(self) -> None:
        """Refuse what cannot work, before anything is made.

        Raises ConfigError: stages in another order, an override of none of them, a number of devices beside a layout,
            or a missing file.
        """
        problems = []
        if not self.stages or self.stages != STAGES[: len(self.stages)]:
            given = ",".join(self.stages) or "none"
            problems.append(f"--stages {given[:80]}: they are the first of {','.join(STAGES)}, in this order")
        for text in self.overrides:
            stage, _ = self._split(text)
            if stage is not None and stage not in self.stages:
                off = ", which --rl adds" if stage == RL else ""
                problems.append(f"{text[:80]!r}: {stage!r} is none of the stages {', '.join(self.stages)}{off}")
        layout = ("parallel.", "tp=", "pp=", "cp=", "ep=", "dp=", "sp=")
        if self.devices is not None and any(self._split(text)[1].startswith(layout) for text in self.overrides):
            problems.append(
                "--devices and parallel.* keys both set the number of devices: give one of them; without parallel.dp "
                "a run takes all"
            )
        paths = {"--data": self.text, "--task-data": self.task_data}
        paths |= {f"--{stage}": self.mixture(stage) for stage in MIXTURES}
        problems += [f"{name} {path} is not there" for name, path in paths.items() if path and not path.exists()]
        problems += self._unusable_items()
        if problems:
            raise ConfigError(problems)

    def _unusable_items(self) -> Iterator[str]:
        """Yield why the items of an evaluation, or of RL, would fail it hours after the first stage has begun."""
        if self.task_data is None:
            return
        core = self.task_data / "core"
        checks: list[Callable[[], object]] = []
        if core.is_dir() and self.items is not None:
            checks.append(partial(read_bundle, core, self.items))
        options = Options(self.work, self.task_data, limit=self.items)
        # What runs programs is not asked without leave, nor is anything before the conversations.
        for name in EVALUATED if len(self.stages) > 1 else ():
            if has_rows(name, self.task_data) and (self.allow_code or not TASKS[name].runs_programs):
                checks.append(partial(check_rows, name, options))
        for check in checks:
            try:
                check()
            except (ConfigError, DataError) as error:
                yield str(error)
        if RL in self.stages:
            given = {text.partition("=")[0] for text in self.overrides_of(RL)}
            for key, part in (("rl.questions", "train"), ("rl.test_questions", "test")):
                if key not in given and not any((self.task_data / "gsm8k").glob(f"{part}*")):
                    yield f"--rl: --task-data has no file gsm8k/{part}*: {self.task_data}"

    @staticmethod
    def _split(override: str) -> tuple[str | None, str]:
        """Return the stage that an override names, None if it is for all, and the override without it."""
        stage, mark, _ = override.partition("=")[0].partition(":")
        return (stage, override.removeprefix(f"{stage}:")) if mark else (None, override)


def check_choices(request: Request) -> dict[str, str]:
    """Return what the request makes the folder from; refuse another text, vocabulary or mixture than it was made from.

    Raises:
        ConfigError: the folder was made from something else.
        DataError: the file of its choices cannot be read.
    """
    default = "the embedded sample" if request.smoke else f"FineWeb-Edu, {request.files} files"
    text = str(request.text.resolve()) if request.text else default
    wanted = {"text": text, "vocabulary": str(request.tokens)}
    mixtures = {stage: request.mixture(stage) for stage in MIXTURES}
    wanted |= {stage: f"{path.name} (SHA-256 {sha256(path)[:16]})" for stage, path in mixtures.items()}
    path = request.work / CHOICES
    found = _read(path)["made_from"] if path.exists() else wanted
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ConfigError(
                f"{request.work} was made with {name} {found.get(name)}, not {value}: choose another folder with --work"
            )
    return wanted


def keep_choices(request: Request) -> None:
    """Write the choices from which the folder is made. Raises as `check_choices`, and OSError: it cannot be written."""
    content = {"made_from": check_choices(request), "asked": {name: getattr(request, name) for name in KEPT}}
    text = json.dumps(content, indent=2, default=lambda each: str(each.absolute())) + "\n"
    write_file(request.work / CHOICES, text.encode())


def kept_request(work: Path, device: str) -> Request:
    """Return a request with the data and evaluations of a folder's last speedrun, for further models there.

    Raises:
        ConfigError: no speedrun has worked there.
        DataError: the file of its choices cannot be read.
    """
    path = work / CHOICES
    if not path.exists():
        raise ConfigError(f"{work} is the folder of no speedrun, whose text and conversations further models learn")
    asked = _read(path)["asked"]
    for name in ("text", "task_data"):
        asked[name] = None if asked[name] is None else Path(asked[name])
    asked["mixtures"] = {stage: Path(each) for stage, each in asked["mixtures"].items()}
    return Request(work, device, **asked)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = parse_json(read_whole(path))
        # Folders of earlier releases are those of no smoke speedrun.
        content["asked"].setdefault("smoke", False)
        if content["asked"].keys() != set(KEPT):
            raise ValueError(f"asked has {', '.join(content['asked'])}")
        return {name: dict(content[name]) for name in ("made_from", "asked")}
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: it does not say from what the folder was made ({error})") from None
