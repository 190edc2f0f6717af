"""The results of a fine-tuning: verify adapters or full models before a run is complete, and merge adapters."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import complete_folder
from efficientbench.finetuning.base_model import check_base
from efficientbench.finetuning.complete import with_later_keys
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.methods import METHODS, peft_arguments
from efficientbench.metrics.records.record import RECORD_NAME, read_record
from efficientbench.training.checkpoints import manifest

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
Shapes = Mapping[str, tuple[int, ...]]


class SavingError(RuntimeError):
    """The saved files do not hold what was trained."""


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """Return a parameter's full shape, also if ZeRO-3 shards it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def verify(
    folder: Path,
    expected: Shapes,
    may_miss: frozenset[str] = frozenset(),
    initial: Mapping[str, torch.Tensor] | None = None,
    report: manifest.Report | None = None,
) -> int:
    """Read all saved tensors, check their names, shapes and values, and return how many numbers they hold.

    Args:
        folder: the folder of the .safetensors files.
        expected: the tensors' shapes by name.
        may_miss: names that the files may lack, such as an output projection that is tied to the embedding.
        initial: the tensors before the training, by name, at least one of which must have changed; None: a matrix B, or
            without adapters any tensor, must not be zero.
        report: told which tensor is read.

    Raises:
        SavingError: a tensor is missing, unexpected, of another shape or not finite; or nothing was learned.
    """
    found, problems, moved, numbers = set(), [], False, 0
    # B starts at zero; without an adapter any non-zero tensor shows that something was written.
    watched = "lora_B" if any("lora_B" in name for name in expected) else ""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118, safetensors' file is no mapping
                if report is not None:
                    report(f"verifying {name}")
                tensor = file.get_tensor(name)
                found.add(name)
                numbers += tensor.numel()
                if problem := _problem(name, tensor, expected):
                    problems.append(problem)
                elif initial is not None:
                    moved = moved or not torch.equal(tensor, initial[name].to(tensor.dtype))
                else:
                    moved = moved or (watched in name and bool(tensor.any()))
    problems += [f"{name} is missing" for name in expected if name not in found and name not in may_miss]
    if not problems and not moved:
        unmoved = f"all of {watched or 'its tensors'} is zero" if initial is None else "all is as it began"
        problems = [f"{unmoved}: nothing was learned"]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise SavingError(f"{folder}: what was saved is not what was trained: {'; '.join(problems[:3])}{more}")
    return numbers


def _problem(name: str, tensor: torch.Tensor, expected: Shapes) -> str | None:
    """Return what is wrong with a saved tensor, or None."""
    shape = tuple(tensor.shape)
    if name not in expected:
        return f"{name} is of no trained tensor"
    if shape != expected[name]:
        return f"{name} has the shape {shape} instead of {expected[name]}"
    return None if bool(torch.isfinite(tensor).all()) else f"{name} holds numbers that are not finite"


def as_plain_lora(folder: Path, initial: Mapping[str, torch.Tensor]) -> None:
    """Rewrite a PiSSA adapter as LoRA of twice the rank on the base model's own weights.

    PiSSA trains W − s·B₀A₀ + s·BA. The adapter [B, −B₀] [A; A₀] with the scale s is the same on the base's W.

    Args:
        folder: the adapter's folder.
        initial: A₀ and B₀, by their names in the file.
    """
    trained = load_file(folder / ADAPTER)
    both = {}
    for name, tensor in trained.items():
        first = initial[name].to(tensor.dtype)
        is_b = "lora_B" in name
        both[name] = torch.cat([tensor, -first if is_b else first], dim=1 if is_b else 0).contiguous()
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config |= doubled_arguments(config)
    save_file(both, folder / ADAPTER, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def doubled_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of PEFT's LoraConfig after `as_plain_lora`."""
    r, alpha = 2 * arguments["r"], 2 * arguments["lora_alpha"]
    return {**arguments, "r": r, "lora_alpha": alpha, "init_lora_weights": True}


def doubled(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an adapter after `as_plain_lora`."""
    return {
        name: (shape[0], 2 * shape[1]) if "lora_B" in name else (2 * shape[0], shape[1])
        for name, shape in shapes.items()
    }


def merge(named: Path, folder: Path, base: str | None = None) -> int:
    """Write an adapter merged into its base model; return how many numbers the merged model holds.

    Take base and method from the run's record. Verify the adapter's files before reading them.

    Args:
        named: the folder of a run, of its adapter, or of one of its checkpoints.
        folder: the merged model's folder, new or empty.
        base: the base model's folder or hub id; None: the one in the record.

    Raises:
        ConfigError: there is no adapter, or one without a manifest, its base cannot be loaded, `folder` is not empty,
            or the merged weights are not finite.
        CheckpointError: a file of the adapter or of the base is damaged.
        MetricsError: the run's record cannot be read.
    """
    run, adapter = _places(named)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty: name a new folder")
    content = manifest.verify(adapter, more_files=True)
    base, arguments = _recorded(run, base, content.holds == "weights")
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    check_base(base)
    manifest.verify_where_listed(Path(base))
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(
            f"{run}: its base model {base} cannot be loaded ({first}): --base FOLDER names where it is"
        ) from None
    merged = _with_adapter(model, adapter, arguments).merge_and_unload()
    tied = frozenset(merged.all_tied_weights_keys)
    shapes = {name: tuple(tensor.shape) for name, tensor in merged.state_dict().items()}
    with complete_folder(folder) as partial:
        merged.save_pretrained(partial)
        AutoTokenizer.from_pretrained(adapter).save_pretrained(partial)
        try:
            numbers = verify(partial, shapes, tied)
        except SavingError as error:
            raise ConfigError(str(error)) from None
        manifest.seal(partial, replace(content, holds="weights", files={}))
    return numbers


def _places(named: Path) -> tuple[Path, Path]:
    """Return the folders of the run and of the adapter that a folder means. Raises ConfigError."""
    # A link's own parent is not the run.
    adapter = Path(os.path.realpath(named))
    adapter = adapter if os.path.lexists(adapter / ADAPTER) else adapter / "adapter"
    if not os.path.lexists(adapter / ADAPTER):
        raise ConfigError(f"{named}: has no adapter/{ADAPTER}: name the folder of a fine-tuning with an adapter")
    if not os.path.lexists(adapter / manifest.MANIFEST):
        raise ConfigError(
            f"{adapter / manifest.MANIFEST}: missing, as in adapters of earlier versions, whose files cannot be "
            "verified: PEFT merges them (PeftModel.from_pretrained, merge_and_unload)"
        )
    # RUN/adapter or RUN/checkpoint/checkpoint-100.
    runs = [each for each in adapter.parents[:2] if os.path.lexists(each / RECORD_NAME)]
    return (runs or [adapter.parent])[0], adapter


def _recorded(run: Path, base: str | None, saved: bool) -> tuple[str, dict[str, Any]]:
    """Return an adapter's base model, and the arguments of PEFT's LoraConfig that it needs, from its run's record.

    Args:
        run: the run's folder.
        base: the base model that the user names.
        saved: whether the training saved the adapter at its end, PiSSA as plain LoRA; False: it is a checkpoint's.
    """
    record = read_record(run / RECORD_NAME)
    base = base or record.finetuning.get("base_model")
    try:
        config = FinetuneConfig.model_validate(with_later_keys(record.config))
    except ValidationError:
        config = None
    if config is not None and config.method not in METHODS:
        # Nothing that a folder names is imported.
        raise ConfigError(
            f"{run}: its method {config.method} is code from outside this project: PEFT merges such an adapter "
            "(PeftModel.from_pretrained, merge_and_unload)"
        )
    arguments = peft_arguments(METHODS[config.method], config.adapter) if config is not None else None
    if not isinstance(base, str) or arguments is None:
        raise ConfigError(
            f"{run / RECORD_NAME}: is not the record of a fine-tuning with an adapter, or has no base (--base names it)"
        )
    doubles = config is not None and METHODS[config.method].takes_from_base and saved
    return base, doubled_arguments(arguments) if doubles else arguments


def _with_adapter(model: Any, adapter: Path, arguments: dict[str, Any]) -> Any:
    """Return a model with the adapter's weights; raise ConfigError if they do not fit the model.

    PEFT must not read `adapter_config.json`, which can name modules to import.
    """
    from peft import LoraConfig, PeftModel

    try:
        with warnings.catch_warnings(record=True):
            return PeftModel.from_pretrained(model, adapter, config=LoraConfig(**arguments))
    # PEFT raises many types for missing layers and other shapes.
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(f"{adapter}: does not fit its base model ({type(error).__name__}: {first})") from None
