"""Make a run's folder from a model of transformers or nanochat (`efficientbench import`): the inverse of `export`."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import write_file
from efficientbench.config.budget import Budget
from efficientbench.config.layout import Layout
from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from efficientbench.export.families import CLASSES, Architecture
from efficientbench.export.foreign_config import config_of, read_config
from efficientbench.export.target_folder import claimed, refuse_taken
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import Manifest, verify_where_listed

if TYPE_CHECKING:
    import torch

IMPORTED = Path("output/imported")
"""The default folder of imported runs."""
MATRIX = "matrix.yaml"
TRAINED_TOKENS = 2048
"""Longest default sequence, in tokens, of a run that begins with the imported weights."""


@dataclass(frozen=True)
class Imported:
    """A finished import."""

    folder: Path
    """The run's folder."""
    name: str
    """The run's name in `matrix`."""
    matrix: str
    """The file in the folder that defines the run."""
    class_name: str
    """Transformers' class of the model."""
    parameters: int
    dtype: str
    """The dtype of the run's weights."""
    quantization: Quantization | None
    """How the folder's weights were rounded, whose values the run has in full width; None: they were not."""


def import_folder(source: Path, output: Path | None = None) -> Imported:
    """Write a run's folder with model, weights and tokenizer of a folder that transformers or nanochat saved.

    The run has one checkpoint, at step 0, which holds only weights, in the dtype of the files. No code of the source
    is run, and nothing of it is unpickled but plain data of nanochat's.

    Args:
        source: the folder with config.json, safetensors and tokenizer.json; or with nanochat's own files.
        output: the run's folder, new or empty; None for `output/imported/<name of the source>`.

    Raises:
        ConfigError: a file of the source is missing or damaged, or the model is not one of ours; the message names the
            file, and the key or tensor. Or the output is taken or cannot be written.
        DataError: the tokenizer is damaged.
        CheckpointError: the source has a manifest of this program, and a file is damaged.
    """
    try:
        if not source.is_dir():
            raise ConfigError(f"{source}: no such folder; give one that save_pretrained of transformers wrote")
        size = _name(source)
        target = Path(os.path.realpath(output or IMPORTED / size))
        refuse_taken(target)
        verify_where_listed(source)
        config, architecture, tensors, tokenizer = read_model(source, size)
        from efficientbench.export.packed import Unpacked

        quantization = tensors.quantization if isinstance(tensors, Unpacked) else None
        parameters = count_parameters(config.model).total
        with claimed(target, DTYPE_BYTES[config.training.dtype] * parameters) as partial:
            from efficientbench.export.tensors import imported

            try:
                weights = dict(imported(tensors, config.model, architecture))
            except ConfigError as error:
                raise ConfigError(f"{source}: {error}") from None
            rounded = "" if quantization is None else f", values of {quantization.name}"
            origin = f"{source.resolve().name} ({CLASSES[architecture]}{rounded})"
            _write_run(partial, target, config, tokenizer, weights, origin)
    except OSError as error:
        raise ConfigError(f"{error.filename or source}: {error.strerror or error}; nothing was imported") from None
    matrix, dtype = str(target / MATRIX), config.training.dtype
    return Imported(target, config.name, matrix, CLASSES[architecture], parameters, dtype, quantization)


def with_dtype(config: RunConfig, dtype: str) -> RunConfig:
    """Return the configuration with the dtype of the weights."""
    return config.changed("training", dtype=dtype)


def _name(source: Path) -> str:
    """Return the folder's name, with only the characters that a run's name may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", source.resolve().name).strip("._-")[:64] or "model"


def read_model(source: Path, size: str) -> tuple[RunConfig, Architecture, Mapping[str, torch.Tensor], TextTokenizer]:
    """Return configuration, model type, weights by transformers' names, and tokenizer; see `import_folder`."""
    from efficientbench.export.nanochat_files import NanochatFolder
    from efficientbench.export.packed import Unpacked, read_settings
    from efficientbench.export.safetensors_folder import Tensors

    tensors: Mapping[str, torch.Tensor]
    if NanochatFolder.is_one(source):
        nanochat = NanochatFolder(source)
        path = nanochat.meta
        config, architecture = config_of(path, nanochat.config(), size)
        tensors, dtype = nanochat.tensors()
        tokenizer = nanochat.tokenizer()
    else:
        path = source / "config.json"
        config, architecture, settings = read_config(source, size)
        tensors = saved = Tensors(source)
        if settings:
            tensors = Unpacked(saved, read_settings(path, settings))
        dtype = saved.dtype
        tokenizer = _tokenizer(source)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise ConfigError(
            f"{path}: vocab_size is {config.model.vocab_size:,}, and the tokenizer has {tokenizer.vocab_size:,} "
            "tokens: no fewer than that would be right"
        )
    return with_dtype(config, dtype), architecture, tensors, tokenizer


def _tokenizer(source: Path) -> TextTokenizer:
    path = source / "tokenizer.json"
    if not path.is_file():
        # Without it, transformers would have to make a fast tokenizer, perhaps by code of the folder's own.
        raise ConfigError(f"{path} is missing: save_pretrained of a fast tokenizer (AutoTokenizer) writes it")
    return load_tokenizer(source)


def _write_run(
    folder: Path,
    target: Path,
    config: RunConfig,
    tokenizer: TextTokenizer,
    weights: dict[str, torch.Tensor],
    origin: str,
) -> None:
    """Write the files of a run into `folder`; they move to `target` afterwards."""
    from efficientbench.devices.cpu import CPU

    host = CPU()
    # Before Megatron is imported, which asks for a device at once.
    host.prepare(0)
    layout = Layout.of(config, 1, oversubscribe=True)
    manifest = Manifest(
        step=0,
        stopped=False,
        holds="weights",
        config=config.model_dump(mode="json"),
        data=[],
        layout=asdict(layout),
        formula=FORMULAS,
        steps_left_out=0,
        optimizer_step=0.0,
        loss_scale=None,
        progress={},
    )
    with warnings.catch_warnings():
        # Megatron warns of missing libraries that it does not need.
        warnings.simplefilter("ignore")
        from efficientbench.training.checkpoints.save import write_weights

        write_weights(folder, manifest, weights, host.backend)
    tokenizer.save(OutputFolder(folder).tokenizer)
    write_file(folder / "matrix.yaml", _matrix(config).encode())
    tokens_per_step = config.training.global_batch_size * config.training.seq_len
    budget = Budget(0, 0, tokens_per_step, count_parameters(config.model).total)
    job = Job(config, layout, budget, (), target, tokenizer_fingerprint=tokenizer.fingerprint, imported=origin)
    job.write(OutputFolder(folder).config)


def _matrix(config: RunConfig) -> str:
    """Return a matrix that defines the model as a named run, for runs that begin with its weights."""
    training = {"dtype": config.training.dtype, "seq_len": min(config.training.seq_len, TRAINED_TOKENS)}
    content = {
        "variants": {config.variant: {"model": config.model.model_dump(mode="json"), "training": training}},
        "sizes": {config.size: {}},
        "suites": {"imported": [{"variants": [config.variant], "sizes": [config.size]}]},
    }
    return "# The imported model as a named run, for --matrix.\n" + yaml.safe_dump(content, sort_keys=False)
