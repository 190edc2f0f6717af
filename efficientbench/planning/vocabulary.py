"""The vocabulary of a run's model, which grows to the size of its text's tokenizer where no key sets it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from efficientbench.architecture.variant import known
from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.matrix import MATRIX
from efficientbench.config.schema import DataConfig, RunConfig
from efficientbench.config.spellings import ALIASES
from efficientbench.config.tunings import named_tunings
from efficientbench.costs.model import count_parameters
from efficientbench.planning.matching import matched
from efficientbench.planning.plan import known_corpora


class Vocabulary(NamedTuple):
    """A vocabulary that is known before a run prepares its text."""

    size: int
    source: str
    """The tokenizer or the key that has this size, for messages."""
    exact: bool
    """Whether `size` is exact; False: it is the most that a tokenizer yet to be trained may have."""


def resolve_run(
    name: str, smoke: bool = False, overrides: Sequence[str] = (), matrix_file: Path = MATRIX
) -> tuple[RunConfig, str | None]:
    """Return a run's configuration as `resolve` does, with a vocabulary that its text's tokenizer fits into.

    The configuration has the size that `match` asks for.

    Returns:
        The configuration, and the lines to print if the vocabulary has grown or the size has changed, else None.

    Raises:
        ConfigError: as `resolve` and `matched`; the name is a fine-tuning's; or the user has set `model.vocab_size`,
            too small for the tokenizer.
        DataError: the tokenizer cannot be loaded, or a manifest is damaged.
    """
    try:
        config = resolve(name, smoke, overrides, matrix_file)
    except ConfigError:
        if name in named_tunings():
            raise ConfigError(
                f"{name} is a fine-tuning: efficientbench finetune {name}, with --plan to see what it takes"
            ) from None
        raise
    config, grown = with_vocabulary(config, is_given(overrides))
    config, solved = matched(config, overrides, matrix_file)
    return config, "\n".join(filter(None, (grown, solved))) or None


def is_given(overrides: Sequence[str]) -> bool:
    """Return whether one of the texts `key=value` sets the model's vocabulary."""
    keys = (override.partition("=")[0] for override in overrides)
    return "model.vocab_size" in {ALIASES.get(key, key) for key in keys}


def with_vocabulary(config: RunConfig, given: bool) -> tuple[RunConfig, str | None]:
    """Return the run with a vocabulary that its text's tokenizer fits into, and the line to print if it has grown.

    `given`: whether the user has set `model.vocab_size`, which then does not change.

    Raises ConfigError and DataError as `resolve_run` does.
    """
    text = _vocabulary(config.data)
    if text.size <= config.model.vocab_size:
        return config, None
    if given:
        if text.exact:
            raise ConfigError(too_small(config, text.size, text.source))
        return config, None
    model = config.model.model_copy(update={"vocab_size": text.size})
    counts = [known(partial(_parameters, each)) for each in (config, config.model_copy(update={"model": model}))]
    grown = ""
    if counts[0] and counts[1]:
        grown = f"; the model has {counts[1]:,} parameters instead of {counts[0]:,}, {counts[1] / counts[0]:.3g} times"
    said = f"model.vocab_size={text.size} instead of {config.model.vocab_size}, as {text.source} has{grown}"
    return config.model_copy(update={"model": model}), said


def too_small(config: RunConfig, size: int, source: str) -> str:
    """Return the message for a model whose vocabulary is smaller than its tokenizer's."""
    return (
        f"model.vocab_size: {config.model.vocab_size:,} tokens are fewer than the {size:,} of {source}; set "
        f"model.vocab_size={size} or more"
    )


def _parameters(config: RunConfig) -> int:
    return count_parameters(config.model).total


def _vocabulary(data: DataConfig) -> Vocabulary:
    if data.tokenizer is not None:
        return Vocabulary(_size(data.tokenizer), f"the tokenizer {data.tokenizer}", exact=True)
    corpora = known_corpora(data)
    if corpora:
        return Vocabulary(corpora[0].vocab_size, f"the tokenizer {corpora[0].tokenizer_folder}", exact=True)
    return Vocabulary(data.trained_vocab_size, "data.trained_vocab_size", exact=False)


@lru_cache(maxsize=4)
def _size(tokenizer: str) -> int:
    """Return the size of a tokenizer's vocabulary, cached since every run of a sweep asks for it."""
    # Imported here, since it loads libraries: most runs train a tokenizer.
    from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer

    return load_tokenizer(tokenizer).vocab_size
