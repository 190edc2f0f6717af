"""The runs of a pipeline as a matrix of their own: the stages of chat.yaml, at any depth and in any architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from efficientbench.basics.errors import ConfigError, did_you_mean
from efficientbench.basics.files import write_file
from efficientbench.basics.foreign import read_whole
from efficientbench.config.depths import size_of_depth, smoke_size
from efficientbench.config.load import merged
from efficientbench.config.matrix import CHAT, Matrix, Overlay, load_matrix, load_smoke, load_yaml
from efficientbench.speedrun.request import BASE, MID, RL, SFT, STAGES, Request

SHORT: Overlay = {
    # Any CPU computes float32 well; some take ten times as long in bf16.
    "training": {
        "dtype": "fp32",
        "seq_len": 512,
        "micro_batch_size": 4,
        "global_batch_size": 4,
        "learning_rate": 3e-3,
        "validation_interval": 0,
        "validation_tokens": 8192,
    },
    "measurement": {"min_steps": 10},
    # A few hundred documents: a hundredth of them would be too few to validate on.
    "data": {"split": [9, 1, 0]},
}
"""Settings of all stages of a short pipeline."""
SHORT_STAGES: Mapping[str, Overlay] = {
    BASE: {"training": {"steps": 100, "min_learning_rate": 3e-4}},
    MID: {"training": {"steps": 60}},
    # So few steps learn nothing at a fiftieth of the rates.
    SFT: {"training": {"steps": 60, "lr_scale": 0.5}},
    RL: {
        "training": {"steps": 50, "lr_scale": 0.1, "micro_batch_size": 8, "global_batch_size": 8},
        "rl": {"samples": 4, "max_new_tokens": 64, "test_every": 50, "test_limit": 20, "test_samples": 4},
    },
}

SMOKE: Overlay = merged(
    SHORT,
    {"training": {"seq_len": 256, "micro_batch_size": 8, "global_batch_size": 8, "validate_every_tokens": 0}},
)
"""Settings of all stages of a smoke speedrun, besides those of `SHORT_STAGES`."""


class _WithoutAnchors(yaml.SafeDumper):
    """Writes a repeated value in full each time, instead of an anchor and aliases, for people to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def run_name(stage: str, variant: str | None, depth: int) -> str:
    """Return the name of a stage's run, like `mid_mla_d12`; the architecture of chat.yaml has no name in it."""
    return "_".join([stage, *([variant] if variant else []), f"d{depth}"])


def write_matrix(request: Request, variant: str | None) -> Path:
    """Write the matrix file with the runs of an architecture, unless it already has this content.

    Raises:
        ConfigError: matrix.yaml has no such variant.
        OSError: the folder cannot be written.
    """
    content = make_matrix(request, variant)
    path = request.work / f"{variant or 'chat'}_d{request.layers}.yaml"
    about = "# The runs of this pipeline, as `efficientbench run NAME --matrix FILE` takes them.\n"
    text = (about + yaml.dump(content, Dumper=_WithoutAnchors, sort_keys=False, default_flow_style=None)).encode()
    if not path.is_file() or read_whole(path) != text:
        write_file(path, text)
    return path


def make_matrix(request: Request, variant: str | None) -> dict[str, Any]:
    """Return the matrix of an architecture: a run for each stage, at one depth, and its smaller shape for `--smoke`.

    Raises ConfigError: matrix.yaml has no such variant.
    """
    chat: Matrix = load_yaml(CHAT, Matrix)
    architecture = _architecture(variant)
    names = {stage: run_name(stage, variant, request.layers).rpartition("_")[0] for stage in STAGES}
    size = f"d{request.layers}"
    variants = {
        name: _stage(chat.variants[stage], architecture, SHORT_STAGES[stage] if request.short else None)
        for stage, name in names.items()
    }
    content: dict[str, Any] = {
        "sizes": {size: _size(chat, request.layers, request.tokens)},
        "variants": variants,
        "suites": {"chat": [{"variants": [*variants], "sizes": [size]}]},
    }
    if request.smoke:
        content["smoke"] = {
            "sizes": {size: smoke_size(content["sizes"][size])},
            "variants": {name: _smoke_stage(stage, variant) for stage, name in names.items()},
        }
    return content


def _architecture(variant: str | None) -> Overlay:
    """Return the settings of a variant of matrix.yaml; what its model does not set is that of mha, as in chat.yaml."""
    known = load_matrix().variants
    if variant is not None and variant not in known:
        hint = did_you_mean(variant, known, f"there are {', '.join(known)}")
        raise ConfigError(f"--variant: there is no variant called {variant[:80]!r}: {hint}")
    layer = known[variant] if variant else {}
    model = {**known["mha"]["model"], **layer.get("model", {})}
    return {**layer, "model": model}


def _stage(stage: Overlay, architecture: Overlay, short: Overlay | None) -> Overlay:
    layer = merged(architecture, stage)
    if short is None:
        return layer
    layer = merged(merged(layer, SHORT), short)
    # Its length is a number of steps: a layer of the configuration has one length.
    layer["training"].pop("epochs", None)
    return layer


def _smoke_stage(stage: str, variant: str | None) -> Overlay:
    """Return the smaller shape of a stage: short, and with what `--smoke` changes in the variant's model."""
    model = load_smoke().variants.get(variant or "", {}).get("model", {})
    return merged(merged(SMOKE, SHORT_STAGES[stage]), {"model": model})


def _size(chat: Matrix, depth: int, vocabulary: int) -> Overlay:
    """Return the shapes and the batch of a depth: those of chat.yaml, or by its rules."""
    known = chat.sizes.get(f"d{depth}")
    layer = known or size_of_depth(chat.sizes, depth)
    model = {**layer["model"], "vocab_size": vocabulary}
    # Each architecture brings its own attention.
    model.pop("attention", None)
    return {**layer, "model": model, "data": {"trained_vocab_size": vocabulary}}
