"""Check before any rank starts that a run may continue another one, its trunk (`init.state=everything`)."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.basics.errors import CheckpointError, ConfigError
from efficientbench.config.budget import Budget
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.running.resume import MAY_DIFFER, differences, settings
from efficientbench.running.trained import TrainedRun, trained_config
from efficientbench.training.checkpoints.manifest import begun_with, complete, read_manifest
from efficientbench.training.update.schedule import learning_rate

_OWN = (
    *(*MAY_DIFFER, "init.", "label", "data.order_tokens", "training.tokens", "training.steps", "training.epochs"),
    *("training.lr_schedule", "training.lr_decay_fraction", "training.min_learning_rate"),
)
"""Keys, or beginnings of keys, in which a branch may differ from its trunk: those of any attempt, length and fall."""


def check_branch(config: RunConfig, budget: Budget, data: Sequence[str]) -> None:
    """Refuse a branch that would not be what a run of its length is; do nothing for other runs.

    Args:
        config: the run's configuration, from `initialised`, fitted to its devices.
        budget: its length.
        data: the fingerprint of each source's tokens.

    Raises:
        ConfigError: the checkpoint lacks moments, its run began with another one's, or a key, the text, the formulas or
            an earlier learning rate differs; or too few steps are left.
    """
    init, checkpoint = config.init, begun_with(config.init)
    if checkpoint is None or not init.branches:
        return
    folder = checkpoint.parents[1]
    try:
        trunk, manifest = TrainedRun.read(folder).job, read_manifest(checkpoint)
        before = trained_config(manifest.config)
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"init.run: {error}") from None
    if manifest.holds != "everything":
        others = ", ".join(each.name for each in complete(folder) if each.name != checkpoint.name)
        if not others:
            raise ConfigError(
                f"init.step: {checkpoint.name} of {folder} holds weights alone, as the last one of a run does, and "
                "there is no other: checkpoint.at_tokens keeps some"
            )
        raise ConfigError(
            f"init.step: {checkpoint.name} of {folder} holds weights alone, as the last one of a run does: name "
            f"another of {others} (checkpoint.at_tokens keeps some)"
        )
    if before.init.run is not None:
        raise ConfigError(f"init.run: {folder} itself began with {before.init.run}: a trunk draws its weights")
    there, here = (settings(each.model_dump(mode="json"), _OWN) for each in (before, config))
    there |= {"formulas": manifest.formula, "tokens of data.path": manifest.data}
    here |= {"formulas": FORMULAS, "tokens of data.path": list(data)}
    if differing := differences(there, here):
        listed = "; ".join(f"{key} is {there.get(key)} there and {here.get(key)} here" for key in differing)
        raise ConfigError(f"init.state: everything continues {folder} as it was: {listed}")
    _check_length(config, budget, manifest.step)
    rates = [(before.training, trunk.budget.steps), (config.training, budget.steps)]
    for step in range(1, manifest.step + 1):
        own, other = (learning_rate(training, step, steps) for training, steps in rates)
        if own != other:
            raise ConfigError(
                f"init.step: the learning rate of step {step:,} is {own:.4g} in {folder} and {other:.4g} in a run of "
                f"{budget.steps:,} steps: a branch begins before the rate of either falls (training.lr_schedule=wsd), "
                "and its rise depends on no length (training.lr_warmup_tokens)"
            )


def _check_length(config: RunConfig, budget: Budget, begin: int) -> None:
    """Raise a ConfigError if a branch, which begins after step `begin`, has too few steps of its own to measure."""
    needed = config.measurement.warmup_steps + config.measurement.min_steps
    if budget.steps - begin < needed:
        raise ConfigError(
            f"init.step: {begin:,} of the run's {budget.steps:,} steps are those of {config.init.run}: {needed:,} more "
            "are needed for measurement.warmup_steps and measurement.min_steps"
        )
