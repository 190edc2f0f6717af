"""The methods of fine-tuning: what each trains, and its arguments for PEFT."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field

from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.basics.part import Fraction, Part, PositiveFloat, PositiveInt

Method = Literal["lora", "lora_plus", "rslora", "dora", "pissa", "freeze", "full"]

WITH_ADAPTER = ("lora", "lora_plus", "rslora", "dora", "pissa")
"""The methods that freeze the base model's weights and train low-rank matrices besides."""

_OF_METHOD: dict[str, dict[str, Any]] = {
    # Scale alpha / √r instead of alpha / r (arXiv 2312.03732).
    "rslora": {"use_rslora": True},
    # Magnitude and direction of the weights are learned separately (arXiv 2402.09353).
    "dora": {"use_dora": True},
    # The matrices start as the weight's principal singular components, which the base loses (arXiv 2404.02948).
    "pissa": {"init_lora_weights": "pissa"},
}


class AdapterConfig(Part):
    """The adapter that a method adds to the base model, or the layers of it that the method trains."""

    r: PositiveInt = Field(default=64, description="rank of the low-rank matrices")
    alpha: PositiveFloat = Field(
        default=128.0, description="numerator of their scale, alpha / r; with rslora alpha / √r"
    )
    dropout: Fraction = Field(default=0.05, description="share of an adapter's inputs that training sets to 0")
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="names of the linear layers that get an adapter",
    )
    lora_plus_ratio: PositiveFloat = Field(
        default=16.0, description="lora_plus: learning rate of B over that of A (arXiv 2402.12354)"
    )
    freeze_layers: PositiveInt = Field(
        default=2, description="freeze: the last decoder layers, which alone are trained"
    )


def peft_arguments(method: Method, adapter: AdapterConfig) -> dict[str, Any] | None:
    """Return the arguments of PEFT's LoraConfig; None for a method without an adapter."""
    if method not in WITH_ADAPTER:
        return None
    return {
        "task_type": "CAUSAL_LM",
        "r": adapter.r,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": sorted(adapter.targets),
        **_OF_METHOD.get(method, {}),
    }


def check_targets(targets: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError if a target is not a linear layer of the decoder; the message names the nearest one."""
    for target in targets:
        if target not in known:
            near = nearest(target, known)
            hint = f"did you mean {near}?" if near else f"they are {', '.join(sorted(known))}"
            raise ConfigError(f"adapter.targets: no linear layer of the decoder is named {target!r}; {hint}")


def check_layers(trained: int, count: int) -> None:
    """Raise ConfigError if more layers are to be trained than the model has."""
    if trained > count:
        raise ConfigError(f"adapter.freeze_layers: {trained} layers are to be trained, and the model has {count}")
