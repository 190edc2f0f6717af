"""Do a study, from its question to its answer."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.config.matrix import MATRIX
from efficientbench.metrics.records.plausible import load_records
from efficientbench.study.answer import answer
from efficientbench.study.cells import LadderPlan, plan_ladder
from efficientbench.study.forecast import print_forecast, within_budget
from efficientbench.study.page import print_answer
from efficientbench.study.record import write_answer
from efficientbench.study.run import found_study, train
from efficientbench.study.runs import Study
from efficientbench.study.suite import parsed_target, section_of, written
from efficientbench.sweep.machine import Machine, find_machine, parallel_runs
from efficientbench.sweep.selection import Request
from efficientbench.sweep.sweep import Manner, device_of

ANYWHERE = Machine("cpu", "", ("0",), None, 0, None)
"""Where no run starts: records may be of any device."""


@dataclass(frozen=True)
class Question:
    """What a study is asked."""

    matrix: Path = MATRIX
    """With the section `study`, unless `variants` are named."""
    variants: tuple[str, ...] = ()
    """These and the next four lie over the section's; empty or None: the section's own."""
    target: str | None = None
    """Like 1.5B@20x."""
    baseline: str | None = None
    match: str | None = None
    seeds: int | None = None
    budget: str | None = None
    """Like `400 device-hours`: fills sizes, tokens per parameter and seeds that the section lacks."""
    overrides: tuple[str, ...] = ()
    """`key=value` of every run."""
    generate: bool = False
    """Whether generation is measured with the largest model of each variant."""
    despite: Collection[str] = field(default=())
    """`reach`: plan a target further away than a study reaches."""
    price_per_hour: float | None = None
    """Of one device, in the user's currency."""

    @property
    def name(self) -> str:
        """Of the file; of variants of the shipped matrix, these."""
        return self.matrix.stem if self.matrix != MATRIX else f"study_{'_'.join(self.variants)}"[:80]

    def words(self) -> dict[str, object]:
        """Return the words of the section. Raises ConfigError: the matrix or the target cannot be read."""
        given = {"variants": self.variants, "baseline": self.baseline, "match": self.match, "seeds": self.seeds}
        words: dict[str, object] = {key: value for key, value in given.items() if value}
        return written(self.matrix, words | ({"target": parsed_target(self.target)} if self.target else {}))


def study(
    question: Question,
    jobs: str = "auto",
    time_limit_s: float | None = None,
    retry_failed: bool = False,
) -> tuple[Study, int]:
    """Train what a study lacks.

    Args:
        question: what is asked.
        jobs: number of runs at once, or `auto`: as many as have devices of their own, on a CPU one for each core.
        time_limit_s: time limit of one run in seconds; None: no limit.
        retry_failed: whether runs that failed in an earlier call are retried.

    Returns:
        The study as it then is on disk, and the exit code: 0 when every run is done, 1 when some failed or cannot run,
        130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

    Raises:
        ConfigError: the question is wrong, or the study's folder cannot be written.
    """
    machine = find_machine(device_of(_request(question)))
    at_once = runs_at_once(jobs, machine)
    plan = planned(question, machine, at_once)
    code = train(plan, Manner(machine, at_once, time_limit_s, retry_failed))
    return as_found(question, plan), code


def tell(study: Study) -> None:
    """Print the answer of a study, and write it into the study's folder where there is one.

    Raises MetricsError: its runs cannot be compared, or a file cannot be written.
    """
    found = answer(study)
    print_answer(found, Console(highlight=False))
    for path in write_answer(found, study.folder) if study.folder.is_dir() else ():
        print(path)


def forecast(question: Question, jobs: str = "auto", cluster: Machine | None = None) -> None:
    """Print what a study takes and what it can tell; train nothing.

    cluster: the machines to plan for instead of this one. Raises ConfigError: the question is wrong.
    """
    machine = cluster or find_machine(device_of(_request(question)))
    plan = planned(question, machine, runs_at_once(jobs, machine), dry_run=True)
    try:
        records = load_records(plan.suite)[0]
    except MetricsError:
        records = []
    print_forecast(plan, as_found(question, plan), records, Console(highlight=False, width=200))


def trained(question: Question) -> Study:
    """Return a study as it is on disk, on whatever machine this is. Raises ConfigError: the question is wrong.

    A budget is one of this machine's hours.
    """
    machine = ANYWHERE if question.budget is None else find_machine(device_of(_request(question)))
    jobs = None if question.budget is None else runs_at_once("auto", machine)
    return as_found(question, planned(question, machine, jobs, dry_run=True))


def planned(question: Question, machine: Machine, jobs: int | None, dry_run: bool = False) -> LadderPlan:
    """Return the plan of a study. Arguments and errors: as `plan_ladder`; also if a budget is too small."""
    words, request = question.words(), _request(question)
    if question.budget is None:
        section = section_of(words, question.matrix)
    else:
        section = within_budget(words, device_hours(question.budget), question.matrix, request, machine, jobs)
    return plan_ladder(section, request, machine, jobs, dry_run, question.despite)


def as_found(question: Question, plan: LadderPlan) -> Study:
    """Return a planned study as it is on disk."""
    return found_study(plan, question.name, question.price_per_hour)


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
