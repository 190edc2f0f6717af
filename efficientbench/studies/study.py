"""Do a study, from its question to its answer."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import check_is_no_file
from efficientbench.config.matrix import MATRIX
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES
from efficientbench.studies.answer import Answer, answer
from efficientbench.studies.cells import LadderPlan, plan_ladder
from efficientbench.studies.forecast import print_forecast, within_budget
from efficientbench.studies.page import print_answer
from efficientbench.studies.record import check_replaces, write_answer
from efficientbench.studies.run import found_study
from efficientbench.studies.run import train as train_runs
from efficientbench.studies.runs import Study
from efficientbench.studies.suite import parsed_target, section_of, written
from efficientbench.sweep.machine import Machine, find_machine, parallel_runs
from efficientbench.sweep.scheduler import Manner
from efficientbench.sweep.selection import Request
from efficientbench.sweep.sweep import device_of

ANYWHERE = Machine("cpu", "", ("0",), None, 0, None)
"""Where no run starts: records may be of any device."""


@dataclass(frozen=True)
class Question:
    """What a study is asked: the arguments of `study`."""

    subject: str | Path | Sequence[str]
    overrides: tuple[str, ...] = ()
    target: str | None = None
    baseline: str | None = None
    match: str | None = None
    seeds: int | None = None
    budget: str | None = None
    generate: bool = False
    despite: Collection[str] = ()
    price_per_hour: float | None = None
    served_tokens: float | None = None

    @property
    def variants(self) -> tuple[str, ...]:
        """Those that the subject names; none where it is a file."""
        if isinstance(self.subject, Path):
            return ()
        if not isinstance(self.subject, str):
            return tuple(self.subject)
        is_file = self.subject.endswith((".yaml", ".yml")) or Path(self.subject).is_file()
        return () if is_file else tuple(filter(None, map(str.strip, self.subject.split(","))))

    @property
    def matrix(self) -> Path:
        """The file with sizes and variants."""
        return MATRIX if self.variants else Path(str(self.subject)).absolute()

    @property
    def name(self) -> str:
        """Of the file; of variants of the shipped matrix, these."""
        return f"study_{'_'.join(self.variants)}"[:80] if self.variants else self.matrix.stem

    def words(self) -> dict[str, object]:
        """Return the words of the section. Raises ConfigError: the matrix or the target cannot be read."""
        given = {"variants": self.variants, "baseline": self.baseline, "match": self.match, "seeds": self.seeds}
        words: dict[str, object] = {key: value for key, value in given.items() if value not in (None, ())}
        return written(self.matrix, words | ({"target": parsed_target(self.target)} if self.target else {}))


def study(
    subject: str | Path | Sequence[str],
    *overrides: str,
    target: str | None = None,
    baseline: str | None = None,
    match: str | None = None,
    seeds: int | None = None,
    budget: str | None = None,
    generate: bool = False,
    despite: Collection[str] = (),
    price_per_hour: float | None = None,
    served_tokens: float | None = None,
    train: bool = True,
    jobs: int | Literal["auto"] = "auto",
    time_limit_s: float | None = None,
    retry_failed: bool = False,
) -> Answer:
    """Answer which variant to pretrain: the command `efficientbench study`, called from Python in a main thread.

    Args:
        subject: a matrix with the section `study`, or variants of the shipped one: [gqa, mla], or `gqa,mla`.
        overrides: `key=value` of every run.
        target: like 1.5B@20x; with baseline, match and seeds it lies over the section's.
        baseline: the variant whose tokens all get.
        match: `flops`, `parameters`, `active` or `none`.
        seeds: runs of each variant in each cell.
        budget: like `400 device-hours`, of this machine: fills sizes, tokens per parameter and seeds.
        generate: whether generation is measured with the largest model of each variant.
        despite: `reach`: a target further away than a study reaches.
        price_per_hour: of one device, in your currency.
        served_tokens: tokens that the trained model will serve, where generation is measured.
        train: whether to train what is missing; else the answer is of the records that are there.
        jobs: runs at once, or `auto`: as many as have devices of their own, on a CPU one for each core.
        time_limit_s: time limit of one run in seconds; None: no limit.
        retry_failed: whether runs that failed in an earlier call are tried again.

    Returns:
        What `study.json` has, which is written into the study's folder with `study.md` and `study.html`:
        `findings.named` is the variant to pretrain, `findings.verdict.standings` has each variant's loss in nats.
        Runs that failed are in `runs`, with their reasons.

    Raises:
        ConfigError: the question is wrong, the study's folder cannot be written, or it has an answer of more runs,
            which were trained with other keys or for another section.
        MetricsError: the runs were validated on different texts.
        KeyboardInterrupt: Ctrl-C; the same call goes on from there. SystemExit: SIGTERM or SIGHUP.
    """
    limits = target, baseline, match, seeds, budget
    question = Question(subject, overrides, *limits, generate, despite, price_per_hour, served_tokens)
    if train:
        found, code = trained(question, str(jobs), time_limit_s, retry_failed)
    else:
        found, code = as_found(question, str(jobs)), 0
    if code == STOP_EXIT_CODES[signal.SIGINT]:
        raise KeyboardInterrupt
    if code not in (0, 1):
        raise SystemExit(code)
    check_replaces(found)
    made = answer(found)
    write_answer(made, found.folder)
    return made


def trained(question: Question, jobs: str, time_limit_s: float | None, retry_failed: bool) -> tuple[Study, int]:
    """Train what a study lacks; arguments and errors as of `study`.

    Returns:
        The study as it then is on disk, and the exit code: 0 when every run is done, 1 when some failed or cannot run,
        130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    machine = find_machine(device_of(_request(question)))
    at_once = runs_at_once(jobs, machine)
    plan = planned(question, machine, at_once)
    code = train_runs(plan, Manner(machine, at_once, time_limit_s, retry_failed))
    return _as_it_is(plan, question), code


def tell(study: Study) -> None:
    """Write the answer of a study into the study's folder, and print it.

    Raises:
        ConfigError: the folder has an answer of more runs, which were trained with other keys or for another section.
        MetricsError: its runs cannot be compared, or a file cannot be written.
    """
    check_replaces(study)
    found = answer(study)
    # First written: a closed pipe, as of `| head`, ends the printing.
    files = write_answer(found, study.folder)
    print_answer(found, Console(highlight=False))
    for path in files:
        print(path)


def forecast(question: Question, jobs: str, cluster: Machine | None = None) -> None:
    """Print what a study takes and what it can tell; train nothing.

    cluster: the machines to plan for instead of this one. Raises ConfigError: the question is wrong.
    """
    machine = cluster or find_machine(device_of(_request(question)))
    plan = planned(question, machine, runs_at_once(jobs, machine), dry_run=True)
    found = _as_it_is(plan, question)
    print_forecast(plan, found, Console(highlight=False, width=200, soft_wrap=True))


def as_found(question: Question, jobs: str = "auto") -> Study:
    """Return a study as it is on disk, on whatever machine this is. Raises ConfigError: the question is wrong.

    A budget is one of this machine's hours. `jobs`: runs at once of the training.
    """
    machine = ANYWHERE if question.budget is None else find_machine(device_of(_request(question)))
    return _as_it_is(planned(question, machine, runs_at_once(jobs, machine), dry_run=True), question)


def _as_it_is(plan: LadderPlan, question: Question) -> Study:
    return found_study(plan, question.name, question.price_per_hour, question.served_tokens)


def planned(question: Question, machine: Machine, jobs: int | None, dry_run: bool = False) -> LadderPlan:
    """Return the plan of a study. Arguments and errors: as `plan_ladder`; also if a budget is too small."""
    words, request = question.words(), _request(question)
    if question.budget is None:
        section = section_of(words, question.matrix)
    else:
        section = within_budget(words, device_hours(question.budget), question.matrix, request, machine, jobs)
    plan = plan_ladder(section, request, machine, jobs, dry_run, question.despite)
    check_is_no_file(plan.suite)
    return plan


def runs_at_once(jobs: str, machine: Machine) -> int | None:
    """Return the number of runs at once: on a CPU, `auto` is one for each core, which has a thread."""
    at_once = parallel_runs(jobs, machine)
    return max(1, int(usable_cores())) if at_once is None and machine.shared else at_once


def device_hours(text: str) -> float:
    """Return the hours of a text like `400 device-hours`. Raises ConfigError: it is none."""
    found = re.fullmatch(r"([\d,]*\.?\d+)\s*(?:h|hours?|device[- ]hours?)", text.strip())
    if found is None or float(found[1].replace(",", "")) == 0:
        raise ConfigError(f"--budget: {text[:40]!r} is no number of device-hours, like '400 device-hours'")
    return float(found[1].replace(",", ""))


def _request(question: Question) -> Request:
    overrides = (f"output=output/{question.name}", *question.overrides)
    return Request(matrix=question.matrix, overrides=overrides, generate=question.generate)
