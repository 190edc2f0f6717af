"""Check the runs of all stages before the first of them trains: what `run` refuses hours later is refused at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import memory_limit_bytes
from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.basics.part import AUTO
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.chat.find_task import find_task
from efficientbench.data_tools.chat.mixture import read_mixture
from efficientbench.data_tools.tokens.manifest import Corpus
from efficientbench.devices.registry import device_called
from efficientbench.evaluation.core.bundle import bundle_of
from efficientbench.planning.plan import Plan, known_corpora, plan_anywhere
from efficientbench.running.corpora import prepare_corpora
from efficientbench.running.errors import USERS_MISTAKES
from efficientbench.running.initialisation import check_model, check_tokenizer, initialised
from efficientbench.running.kind import find_site
from efficientbench.running.micro_batch import decide_together
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.run import Pretraining, counted, plan_checked
from efficientbench.speedrun.request import MIXTURES, Request
from efficientbench.training.reinforcement.questions import check_rewards
from efficientbench.training.reinforcement.rewards import find_reward


def check_runs(request: Request, configs: Sequence[RunConfig]) -> None:
    """Make the checks of `run` that need neither text nor weights, and print what the checkpoints take.

    Import the rewards and tasks that the request names. Where this machine lacks the device, plan for any number of it.

    Raises:
        ConfigError: runs cannot work, each named with its reason, or the disk cannot hold their weights.
        DataError: a mixture is damaged, or one of its tasks is unknown.
        DeviceError, LaunchError, MetricsError: as `find_site`.
    """
    for stage in MIXTURES:
        for entry in read_mixture(request.mixture(stage)).tasks if stage in request.stages else ():
            find_task(entry.task)
    size, earlier = _size_for_auto(request, configs), _by_folder(configs)

    def planned(config: RunConfig) -> Plan:
        before = earlier.get(config.init.run)
        if before is not None:
            check_model(before.model, config, before.name)
        else:
            config = initialised(config, OutputFolder.of_repeat(config))
        return _planned(config, request, size)

    _check_disk(request.work, _of_each(configs, planned))


def check_texts(request: Request, configs: Sequence[RunConfig]) -> None:
    """Make the checks of `run` that need the tokenized text, of all runs; a run without a tokenized text passes.

    Raises ConfigError: a text is damaged, or does not suit its run; the message names the run.
    """
    size, earlier = _size_for_auto(request, configs), _by_folder(configs)

    def check(config: RunConfig) -> None:
        found = known_corpora(config.data)
        if found is None:
            return
        plan = _planned(config, request, size)
        counted(plan, prepare_corpora(plan.config), memory_limit_bytes())
        before = earlier.get(config.init.run)
        if before is None:
            check_tokenizer(config, found)
        elif (weights := known_corpora(before.data)) is not None:
            _check_same_tokenizer(weights[0], found[0])

    _of_each(configs, check)


def _by_folder(configs: Sequence[RunConfig]) -> Mapping[str | None, RunConfig]:
    """Return the runs by the folder in which another one looks for their weights."""
    return {str(OutputFolder.of_repeat(config).path): config for config in configs}


def _check_same_tokenizer(before: Corpus, now: Corpus) -> None:
    """Raise a ConfigError if a text has another tokenizer than that of the run with whose weights its run begins."""
    if before.tokenizer_fingerprint != now.tokenizer_fingerprint:
        raise ConfigError(
            f"data.path: {now.prefix} was made with another tokenizer than {before.prefix}, which the weights of "
            f"init.run learn: the same ids are other tokens; make it with --tokenizer {before.tokenizer_folder}"
        )


def is_trained(request: Request, config: RunConfig) -> bool:
    """Return whether the folder of a run holds its complete record, which `run --repeat` keeps."""
    folder = OutputFolder.of_repeat(config)
    if not folder.record.exists():
        return False
    try:
        if config.training.micro_batch_size == AUTO and (size := _size_for_auto(request, [config])) is not None:
            config = config.changed("training", micro_batch_size=size)
        return Pretraining().is_complete(config, find_site(config, request.mode, folder))
    except USERS_MISTAKES:
        # The run itself says what is wrong.
        return False


def _of_each(configs: Sequence[RunConfig], check: Callable[[RunConfig], Plan | None]) -> list[Plan]:
    """Return what `check` returns for each run. Raises ConfigError: it refuses runs, each of which is named."""
    found, problems = [], []
    for config in configs:
        try:
            plan = check(config)
        except (ConfigError, DataError) as error:
            # Some messages begin with the run's name.
            problems.append(str(error) if str(error).startswith(config.name) else f"{config.name}: {error}")
        else:
            found += [] if plan is None else [plan]
    if problems:
        raise ConfigError(problems)
    return found


def _size_for_auto(request: Request, configs: Sequence[RunConfig]) -> int | None:
    """Return the micro-batch that all runs that say `auto` can use, by plan; None where none does."""
    if device_called(request.device).unavailable_reason() is not None:
        return 1
    return decide_together(configs, request.mode, trial=False)


def _planned(config: RunConfig, request: Request, size: int | None) -> Plan:
    """Return the plan of a run, after the checks that `run` makes up to it; `size`: the micro-batch for `auto`."""
    if config.training.objective == "rl":
        _check_rewards(config, request)
    bundle_of(config.evaluation)
    if config.training.micro_batch_size == AUTO and size is not None:
        config = config.changed("training", micro_batch_size=size)
    device = device_called(config.device)
    if device.unavailable_reason() is not None:
        # The first step says more of the device.
        return plan_anywhere(config)
    site = find_site(config, request.mode, OutputFolder.of_repeat(config))
    return plan_checked(config, device, site.nodes)


def _check_rewards(config: RunConfig, request: Request) -> None:
    """Refuse questions and rewards that cannot be used; import the rewards alone where rows are yet to be downloaded.

    Raises ConfigError, DataError: as `check_rewards`.
    """
    rows = [Path(each) for each in (config.rl.questions, config.rl.test_questions) if each is not None]
    if not any(each.is_relative_to(request.work) for each in rows):
        check_rewards(config.rl)
    elif config.rl.reward is not None:
        find_reward(config.rl.reward)


def _check_disk(work: Path, plans: Sequence[Plan]) -> None:
    """Print what the checkpoints of the runs without a record take. Raises ConfigError: their weights do not fit."""
    left, peaks = 0, [0]
    for plan in plans:
        sizes = known(plan.checkpoint_bytes)
        if sizes is None or OutputFolder.of_repeat(plan.config).record.exists():
            continue
        weights, whole = sizes
        # While a checkpoint is written, all that are kept stay.
        left += weights + (plan.config.checkpoint.keep - 1) * whole
        peaks.append(2 * whole - weights)
    free = shutil.disk_usage(work).free
    if left:
        needed = f"up to {(left + max(peaks)) / 1e9:,.2f} GB"
        print(f"disk: checkpoints take {needed}, and {free / 1e9:,.1f} GB are free in {work}", flush=True)
    if left + max(peaks) > free:
        raise ConfigError(
            f"--work {work}: the checkpoints of all stages take {needed}, and {free / 1e9:,.1f} GB are free there: "
            "make room, choose another folder, or set checkpoint.keep=1"
        )
