"""Check one variant on a tiny model: its computations in this process, then runs: layouts, recomputation, resuming."""

from __future__ import annotations

import importlib.util
import keyword
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import section_of
from efficientbench.architecture.variant import missing
from efficientbench.basics.errors import ConfigError
from efficientbench.config.combination_table import problems
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import (
    cache_bytes,
    count_parameters,
    flops_per_token,
    keys_read_per_query,
    kv_cache_bytes_per_token,
)
from efficientbench.doctor.check import Check, print_checks
from efficientbench.doctor.variant.cases import BASE, LAYOUTS, SHAPES, overrides_of, tiny_models
from efficientbench.doctor.variant.model import model_checks
from efficientbench.launchers.processes.failure import read_failure
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.records.sinks.steplog import read_steps
from efficientbench.model import attention
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import checkpoint_folder

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
    if not path.exists() and (name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None):
        raise ConfigError(f"{name}: Python has a module of this name, which {path.name} would hide: give another one")
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
    for view in config.model.views.values():
        yield from _undeclared(config, view)


def _undeclared(config: RunConfig, model: ModelConfig) -> Iterator[str]:
    attention, position = model.attention_variant, model.position_variant
    capabilities = {
        "tensor parallelism (parallel.tp)": attention.tensor_parallel is not None,
        "context parallelism (parallel.cp)": bool(attention.context_parallel) and position.context_parallel,
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


ROUNDING = 1e-5
"""Largest relative difference of a loss that the order of sums explains."""
SAVED_AFTER = 3
"""Steps before the checkpoint from which a run resumes."""
TIME_LIMIT_S = 600

TOGETHER = (("pipeline", "interleaved pipeline"), ("data parallel", "full recomputation"))
"""Layouts that one run checks together. Where it is refused or wrong, each layout gets a run of its own."""


def run_checks(words: Sequence[str], folder: Path) -> Iterator[Check]:
    """Run the model on one rank, then in every layout that it can have, and compare the losses of all steps.

    Args:
        words: the overrides of BASE's smoke run.
        folder: the folder that the runs write to.
    """
    shared = (*words, f"output={folder}", f"data.cache={folder / 'data'}", f"checkpoint.interval={SAVED_AFTER}")
    single = (*shared, "label=single", "parallel.dp=1")
    wanted = _losses(single)
    if isinstance(wanted, str):
        yield Check("a run", False, wanted)
        return
    yield Check("a run", True, f"{len(wanted)} steps, losses {wanted[0]:.4f} to {wanted[-1]:.4f}")
    yield _resumption(single, wanted)
    shown: set[str] = set()
    for names in (*TOGETHER, *((name,) for name in LAYOUTS)):
        if not shown.issuperset(names):
            check = _layout(names, shared, wanted)
            if len(names) == 1 or check.passed:
                shown.update(names)
                yield check


def _layout(names: Sequence[str], shared: Sequence[str], wanted: list[float]) -> Check:
    """Run the model once in these layouts of LAYOUTS together."""
    keys = {key: value for name in names for key, value in LAYOUTS[name].items()}
    refused = problems(resolve(BASE, smoke=True, overrides=shared), keys)
    if refused:
        return Check(", ".join(names), len(names) == 1, f"refused: {ConfigError(refused)}")
    label = "_and_".join(names).replace(" ", "_")
    good = f"losses of one rank in all {len(wanted)} steps"
    return _same(", ".join(names), _losses((*shared, f"label={label}", *overrides_of(keys))), wanted, good)


def _resumption(overrides: Sequence[str], wanted: list[float]) -> Check:
    """Remove the record and the last checkpoint of the completed run, and run it again: it must resume."""
    folder = OutputFolder.of(resolve(BASE, smoke=True, overrides=overrides))
    folder.record.unlink()
    shutil.rmtree(checkpoint_folder(folder.path, len(wanted)))
    return _same("checkpoint", _losses(overrides), wanted, f"resumed after step {SAVED_AFTER} with the same losses")


def _same(name: str, found: list[float] | str, wanted: list[float], good: str) -> Check:
    if isinstance(found, str):
        return Check(name, False, found)
    distances = [abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=False)]
    worst = max(distances, default=0.0)
    if len(found) != len(wanted):
        return Check(name, False, f"{len(found)} steps instead of {len(wanted)}")
    step = distances.index(worst) + 1
    return Check(name, worst < ROUNDING, good if worst < ROUNDING else f"step {step} differs by {worst:.1e}")


def _losses(overrides: Sequence[str]) -> list[float] | str:
    """Run, and return the loss of every step, or why the run failed; else the last line that it printed."""
    command = module_command("efficientbench.cli", "run", BASE, "--smoke", *overrides)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    folder = OutputFolder.of(resolve(BASE, smoke=True, overrides=overrides))
    if done.returncode != 0:
        failure = read_failure(folder.failure)
        lines = [failure.reason] if failure else (done.stderr.strip() or done.stdout.strip()).splitlines()
        return lines[-1] if lines else f"exit code {done.returncode}"
    return [line["loss"] for line in read_steps(folder.steps) if line["kind"] == "step"]
