"""Check the checkpoint of another run, `init.run`, with which a run begins, before any rank starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import CheckpointError, ConfigError
from efficientbench.config.init import InitConfig
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokens.manifest import Corpus
from efficientbench.metrics.analysis.repeats import flat
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.trained import TrainedRun, trained_config
from efficientbench.training.checkpoints.manifest import check_sizes, identity

MAY_DIFFER = ("init_std", "moe.auxiliary_loss", "moe.auxiliary_over")
"""Keys of the model that do not change what trained weights compute."""


def initialised(config: RunConfig, folder: OutputFolder) -> RunConfig:
    """Return the configuration with folder, step and SHA-256 of the checkpoint that `init.run` names.

    A branch gets the `data.order_tokens` of its trunk.

    Compare the sizes of its files; the ranks, which read them, verify their content.

    Raises:
        ConfigError: there is no such run or checkpoint, it is damaged or of another model, or it is of `folder`, the
            run's own, which would move those weights to `previous/`; or a branch has another order than its trunk.
    """
    init = config.init
    if init.run is None:
        return config
    if Path(init.run).resolve() == folder.path.resolve():
        raise ConfigError(
            f"init.run: {init.run} is this run's own folder: set a label (label=NAME) or another folder (output=FOLDER)"
        )
    try:
        run = TrainedRun.read(Path(init.run).absolute())
        checkpoint, _ = run.checkpoint(init.step, check_sizes)
        manifest, sha256 = check_sizes(checkpoint), identity(checkpoint)
        before = trained_config(manifest.config).model
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"init.run: {error}") from None
    except OSError as error:
        raise ConfigError(f"init.run: {init.run} cannot be read: {error.strerror}") from None
    if init.sha256 not in (None, sha256):
        raise ConfigError(
            f"init.sha256: the manifest of {checkpoint} has the SHA-256 {sha256}, not {init.sha256}: it is another "
            "checkpoint than that which was named"
        )
    check_model(before, config, str(run.folder))
    found = InitConfig(run=str(run.folder), step=manifest.step, sha256=sha256, state=init.state)
    data = config.data
    if init.branches:
        order = run.job.config.data.order_tokens or run.job.budget.tokens
        if data.order_tokens not in (None, order):
            raise ConfigError(f"data.order_tokens: is {order:,} in {run.folder} and {data.order_tokens:,} here")
        data = data.model_copy(update={"order_tokens": order})
    return config.model_copy(update={"init": found, "data": data})


def check_model(before: ModelConfig, config: RunConfig, name: str) -> None:
    """Raise a ConfigError if a run cannot begin with the weights of the run `name`, whose model is `before`."""
    one, other = (flat(each.model_dump(mode="json")) for each in (before, config.model))
    rates = [each.moe.bias_rate for each in (before, config.model) if each.moe]
    # A rate alone may differ, but not whether there is a bias.
    may_differ = MAY_DIFFER if None in rates else (*MAY_DIFFER, "moe.bias_rate")
    if not config.init.branches:
        # Weights may go on under changed code of the user's own, which the record names; a trunk goes on as it was.
        may_differ = (*may_differ, *(key for key in (*one, *other) if key.startswith("code.")))
    differing = [
        f"model.{key} is {one.get(key)} there and {other.get(key)} here"
        for key in dict.fromkeys([*one, *other])
        if key not in may_differ and one.get(key) != other.get(key)
    ]
    if differing:
        raise ConfigError(f"init.run: {name} is of another model than this run: {'; '.join(differing)}")


def check_tokenizer(config: RunConfig, corpora: Sequence[Corpus]) -> None:
    """Refuse text whose tokenizer is not the one that the weights of `init.run` were trained with.

    Raises:
        ConfigError: the tokenizers differ, or that of `init.run` is missing.
        DataError: the tokenizer of `init.run` is damaged.
    """
    if config.init.run is None:
        return
    folder = Path(config.init.run)
    try:
        trained = TrainedRun.read(folder).tokenizer()
    except ConfigError as error:
        raise ConfigError(f"init.run: {error}") from None
    # All corpora of a run have one tokenizer.
    if trained.fingerprint != corpora[0].tokenizer_fingerprint:
        raise ConfigError(
            f"data.tokenizer: the weights of init.run={folder} were trained with another tokenizer than "
            f"{config.data.tokenizer or corpora[0].tokenizer_folder}: the same ids are other tokens; tokenize the text "
            f"with data.tokenizer={OutputFolder(folder).tokenizer}"
        )
