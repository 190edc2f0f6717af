"""Check one variant on a tiny model: its computations in this process, then runs of it."""

from __future__ import annotations

import keyword
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.registry import attention_of, position_of, section_of
from efficientbench.architecture.variant import missing
from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import (
    cache_bytes,
    count_parameters,
    flops_per_token,
    keys_read_per_query,
    kv_cache_bytes_per_token,
)
from efficientbench.doctor.check import print_checks
from efficientbench.doctor.variant.cases import BASE, SHAPES, tiny_models
from efficientbench.doctor.variant.model import model_checks
from efficientbench.doctor.variant.runs import run_checks
from efficientbench.model import attention

SUFFIX = "_example.py"
EXAMPLES = {path.name.removesuffix(SUFFIX): path for path in Path(attention.__path__[0]).glob(f"*{SUFFIX}")}


def write_variant(name: str, like: str, folder: Path) -> Path:
    """Write NAME.py into a folder and return its path.

    Raises ConfigError: there is no example `like`, no module can have this name, or the file cannot be written.
    """
    if like not in EXAMPLES:
        raise ConfigError(f"--like: there is no example like {like[:80]!r}; there are {', '.join(sorted(EXAMPLES))}")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{name[:80]!r} is no name of a Python module: letters, digits and _, like my_window")
    path = folder / f"{name}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(EXAMPLES[like].read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; nothing was written") from None
    return path


TINY = (
    *SHAPES,
    *("model.layers=4", "model.vocab_size=300", "data.trained_vocab_size=300", "training.seq_len=64"),
    *("training.global_batch_size=4", "training.steps=6", "training.validation_tokens=256"),
    *("measurement.min_steps=1", "measurement.enabled=false", "device=cpu"),
)
"""Overrides for a tiny model that two ranks can share as interleaved stages, and for its short runs."""


def check_variant(kind: str, overrides: Sequence[str] = ()) -> int:
    """Check a variant, print the results and what its declarations lack; return 0 if nothing failed, else 1.

    Every tiny model of the variant is checked in this process, the first of them in runs too.

    Args:
        kind: the attention or positional encoding, as `model.attention.kind` or `model.position.kind` names it.
        overrides: further overrides as `key=value`, like the variant's own shapes.

    Raises:
        ConfigError: there is no such variant, or it cannot be built at the tiny shapes.
    """
    console, good = Console(highlight=False), True
    models = {name: (*TINY, *words, *overrides) for name, words in tiny_models(section_of(kind), kind).items()}
    with tempfile.TemporaryDirectory(prefix="check-variant-") as folder:
        for name, words in models.items():
            config = resolve(BASE, smoke=True, overrides=(*words, f"output={folder}"))
            with warnings.catch_warnings():
                # Megatron warns of missing optional packages.
                warnings.simplefilter("ignore")
                computed = list(model_checks(config))
            print_checks(console, f"{name}, computed here", computed)
            good = good and all(check.passed for check in computed)
        ran = list(run_checks(models[kind], Path(folder))) if good else []
        print_checks(console, f"{kind}, in runs" if good else f"{kind}: no runs before these pass", ran)
    for line in undeclared(resolve(BASE, smoke=True, overrides=models[kind])):
        console.print(f"undeclared: {line}", soft_wrap=True)
    return int(not (good and all(check.passed for check in ran)))


def undeclared(config: RunConfig) -> Iterator[str]:
    """Yield what the declarations lack: capabilities, and formulas of figures."""
    model, attention, position = config.model, attention_of(config.model), position_of(config.model)
    capabilities = {
        "tensor parallelism (parallel.tp)": attention.tensor_parallel is not None,
        "context parallelism (parallel.cp)": attention.context_parallel and position.context_parallel,
        "selective recomputation (training.recompute)": attention.selective_recomputation,
        "names of its kernels": (attention.plain_scores is not None or attention.kernels is not None)
        and (position.place != "queries and keys" or position.kernels is not None),
        "its class in transformers (export)": attention.exporter is not None,
    }
    yield from (name for name, declared in capabilities.items() if not declared)
    formulas = (
        lambda: count_parameters(model),
        lambda: flops_per_token(model, config.training.seq_len),
        lambda: keys_read_per_query(model, config.training.seq_len),
        lambda: kv_cache_bytes_per_token(model, config.training.dtype),
        lambda: cache_bytes(model, config.training.seq_len, config.training.dtype),
        lambda: attention.costs.saved(model, 1),
    )
    yield from dict.fromkeys(reason for formula in formulas if (reason := missing(formula)))
