"""Write a run's model as a folder that transformers loads without code of ours (`efficientbench export`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import write_file
from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters
from efficientbench.costs.quantization import disk_bytes
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.export.architectures import architecture_of, transformers_config
from efficientbench.export.card import model_card
from efficientbench.export.families import CLASSES, SHARE_KEY, Architecture, is_untied, rotation
from efficientbench.export.target_folder import claimed, refuse_taken
from efficientbench.metrics.records.record import read_record
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.trained import TrainedRun, changed_code, trained_config

if TYPE_CHECKING:
    import torch


QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DECIDING = ("normalizer", "pre_tokenizer", "model", "decoder")
"""The parts of a tokenizer.json that decide ids and text."""


def survives_qwen2(tokenizer: TextTokenizer) -> bool:
    """Return whether `AutoTokenizer` loads this tokenizer unchanged beside a Qwen2 configuration.

    Beside it, `AutoTokenizer` of transformers 5 reads only vocabulary and merges from the folder. It uses Qwen2's own
    normalization and split, whatever tokenizer.json has, and ids may differ without a warning.
    """
    spec = tokenizer.spec
    parts = (spec["pre_tokenizer"] or {}).get("pretokenizers", [])
    return (
        spec["normalizer"] == {"type": "NFC"}
        and [part["type"] for part in parts] == ["Split", "ByteLevel"]
        and parts[0]["pattern"] == {"Regex": QWEN2_SPLIT}
        and (parts[0]["behavior"], parts[0]["invert"]) == ("Isolated", False)
        and not (parts[1]["add_prefix_space"] or parts[1]["use_regex"])
        and spec["model"]["type"] == "BPE"
        and not any(
            spec["model"][key] for key in ("dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
        )
    )


def changed_parts(tokenizer: TextTokenizer, folder: Path) -> list[str]:
    """Return the parts of the tokenizer that `AutoTokenizer` of the installed transformers changes on loading."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    found = json.loads(loaded.backend_tokenizer.to_str())
    return [part for part in DECIDING if _essence(found[part]) != _essence(tokenizer.spec[part])]


def _essence(part: Any) -> Any:
    """Return a part without values that decide no id: empty ones, which mean the same as absent ones, and offsets."""
    if isinstance(part, dict):
        return {
            key: _essence(value) for key, value in part.items() if value not in (None, "") and key != "trim_offsets"
        }
    return [_essence(each) for each in part] if isinstance(part, list) else part


@dataclass(frozen=True)
class Model:
    """A model to export: its configuration, weights and tokenizer."""

    config: RunConfig
    weights: Mapping[str, torch.Tensor]
    """Unsharded tensors by global name (see model/initial_weights.py); each expert's weights have their own names."""
    tokenizer: TextTokenizer
    quantization: Quantization | None = None
    """The form of the linear layers' weights in the files; None: they have the dtype of training."""

    @property
    def architecture(self) -> Architecture:
        """The model type in transformers."""
        return architecture_of(self.config.model, survives_qwen2(self.tokenizer))


@dataclass(frozen=True)
class Exported:
    """A finished export."""

    folder: Path
    class_name: str
    """Transformers' class of the model."""
    step: int
    """The exported checkpoint's step."""
    warnings: tuple[str, ...]
    """Checkpoints that were skipped, and what a user of the exported files must know."""


def export(run: Path, folder: Path, step: int | None = None, quantization: Quantization | None = None) -> Exported:
    """Write the model of a run into `folder`, which must not exist or be empty.

    The folder gets weights (safetensors, in the dtype of training), configuration, tokenizer and README.md. The
    configuration appears last: a folder that has one is complete.

    Args:
        run: the run's folder.
        folder: the folder for the exported model.
        step: the checkpoint's step; None for the newest intact checkpoint.
        quantization: the form of the linear layers' weights, see `packed`; None: they keep the dtype of training.

    Raises:
        ConfigError: `run` is not a run's folder, no class of transformers computes what its model does, the checkpoint
            does not exist, the folder is taken or cannot be written, or weights of these bits have no form on disk.
        CheckpointError: the checkpoint is damaged.
        DataError: the run's tokenizer is missing or damaged.
        MetricsError: the run's record is damaged.
    """
    try:
        trained = TrainedRun.read(run)
        architecture_of(trained.job.config.model)
        if quantization is not None:
            from efficientbench.export.packed import check_packable

            check_packable(trained.job.config.model, quantization)
        target = Path(os.path.realpath(folder))
        refuse_taken(target)
        record = read_record(OutputFolder(run).record) if OutputFolder(run).record.exists() else None
        tokenizer = trained.tokenizer()
        checkpoint, warnings = trained.checkpoint(step)
        warnings += changed_code(trained.job.config.model)
        from efficientbench.training.checkpoints.read import Weights

        weights = Weights(checkpoint)
        model = Model(trained_config(weights.manifest.config), weights, tokenizer, quantization)
        counted = count_parameters(model.config.model)
        shapes = model.config.model
        untied = counted.embedding if shapes.tied and is_untied(shapes, model.architecture) else 0
        dtype = model.config.training.dtype
        needed_bytes = disk_bytes(shapes, dtype, quantization) + DTYPE_BYTES[dtype] * untied
        with claimed(target, needed_bytes) as partial:
            warnings += write_model(model, partial)
            job, at = trained.job, weights.manifest.step
            facts = model.architecture, at, job.budget.steps, record, warnings, job.imported, quantization
            card = model_card(model.config, *facts)
            write_file(partial / "README.md", card.encode())
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror or error}; nothing was exported") from None
    return Exported(target, CLASSES[model.architecture], weights.manifest.step, tuple(warnings))


def write_model(model: Model, folder: Path) -> list[str]:
    """Write configuration, tokenizer and weights into an existing folder; return warnings for the user.

    Raises:
        ConfigError: the weights are not those of the run's model, or transformers refuses its shapes.
    """
    from efficientbench.export.safetensors_folder import write_shards
    from efficientbench.export.tensors import exported, whole_linears

    _write_configuration(model, folder)
    # `save` replaces its folder, so that the tokenizer gets a folder of its own first.
    model.tokenizer.save(folder / "tokenizer")
    for path in (folder / "tokenizer").iterdir():
        path.rename(folder / path.name)
    (folder / "tokenizer").rmdir()
    shapes, architecture = model.config.model, model.architecture
    write_shards(exported(model.weights, shapes, architecture, model.quantization), folder)
    if model.quantization is not None:
        from efficientbench.export.packed import packed_settings

        settings = packed_settings(model.quantization, whole_linears(shapes, architecture))
        _add_keys(folder, {"quantization_config": settings})
    changed = changed_parts(model.tokenizer, folder)
    if not changed:
        return []
    return [
        f"AutoTokenizer of this transformers release replaces the tokenizer's {', '.join(changed)}, and ids would "
        "differ from those of training; load it with PreTrainedTokenizerFast instead"
    ]


def _write_configuration(model: Model, folder: Path) -> None:
    """Write config.json and generation_config.json."""
    from transformers import GenerationConfig

    eos_token_id = model.tokenizer.eod_id
    transformers_config(model.config, model.architecture, eos_token_id).save_pretrained(folder)
    rope_parameters = rotation(model.config.model)
    if rope_parameters is not None:
        # Releases before 5 read the rotation from these keys; without them they use a default of their own.
        saved = dict(json.loads((folder / "config.json").read_bytes())["rope_parameters"])
        base = saved.pop("rope_theta")
        scaling = {} if rope_parameters["rope_type"] == "default" else {"rope_scaling": saved}
        share = {SHARE_KEY: saved[SHARE_KEY]} if SHARE_KEY in saved else {}
        _add_keys(folder, {"rope_theta": base, **share, **scaling})
    GenerationConfig(eos_token_id=eos_token_id, pad_token_id=eos_token_id).save_pretrained(folder)


def _add_keys(folder: Path, keys: Mapping[str, Any]) -> None:
    """Add keys to config.json."""
    path = folder / "config.json"
    content = json.loads(path.read_bytes()) | keys
    write_file(path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
