"""The methods of fine-tuning: what each trains, and its arguments for PEFT."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from efficientbench.basics import plugins
from efficientbench.basics.errors import ConfigError, did_you_mean
from efficientbench.basics.part import Fraction, Part, PositiveFloat, PositiveInt


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


ENTRY_POINTS = "efficientbench.methods"


@dataclass(frozen=True)
class Method:
    """What a fine-tuning trains."""

    lora: Mapping[str, Any] | None = None
    """Arguments of PEFT's LoraConfig beside rank, scale, dropout and targets; None: the method adds no adapter."""
    choose: Callable[[Any, AdapterConfig], None] | None = None
    """Without an adapter: set `requires_grad` of the loaded base model's weights; None: all of them are trained."""
    two_rates: bool = False
    """Whether B learns `adapter.lora_plus_ratio` times as fast as A."""
    takes_from_base: bool = False
    """Whether the base loses what the adapter begins with, so that it is saved as plain LoRA of twice the rank."""
    formulas: Literal["lora", "dora", "freeze", "full"] | None = None
    """The kind of method whose parameters, FLOPs and memory this one has; None: they are not known."""


def freeze(model: Any, adapter: AdapterConfig) -> None:
    """Train only the last decoder layers, and end the backward pass at the first of them.

    Raises ConfigError: the model has fewer layers.
    """
    count = model.config.num_hidden_layers
    check_layers(adapter.freeze_layers, count)
    trained = model.model.layers[count - adapter.freeze_layers :]
    model.requires_grad_(False)
    trained.requires_grad_(True)
    trained[0].register_forward_pre_hook(_cut)


def _cut(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a layer's arguments with detached hidden states, where a new graph begins.

    With recomputation transformers makes the embedding's output require gradients, which would pass all frozen layers.
    Reentrant recomputation, which ZeRO-3 needs, computes gradients only if the layer's input requires them.
    """
    hidden, *others = arguments
    return (hidden.detach().requires_grad_(), *others)


METHODS: dict[str, Method] = {
    "lora": Method({}, formulas="lora"),
    "lora_plus": Method({}, two_rates=True, formulas="lora"),
    # Scale alpha / √r instead of alpha / r (arXiv 2312.03732).
    "rslora": Method({"use_rslora": True}, formulas="lora"),
    # Magnitude and direction of the weights are learned separately (arXiv 2402.09353).
    "dora": Method({"use_dora": True}, formulas="dora"),
    # The matrices start as the weight's principal singular components, which the base loses (arXiv 2404.02948).
    "pissa": Method({"init_lora_weights": "pissa"}, takes_from_base=True, formulas="lora"),
    "freeze": Method(choose=freeze, formulas="freeze"),
    "full": Method(formulas="full"),
}
"""The project's own methods by name."""


def find_method(name: str) -> Method:
    """Return the method of a name in `METHODS`, of an entry point, or of `package.module:NAME`.

    Call this only with a name from the user's own command, or the job that a rank gets from it: it imports code.

    Raises:
        ConfigError: the method does not exist, or its module cannot be imported.
    """
    if name in METHODS:
        return METHODS[name]
    place = plugins.place_of(check_method(name), ENTRY_POINTS)
    assert place is not None
    return plugins.load(f"method {name}", place, lambda it: isinstance(it, Method), "Method")


def check_method(name: str) -> str:
    """Return the name of a method, and import nothing. Raises ConfigError: there is no such method."""
    if name not in METHODS and plugins.place_of(name, ENTRY_POINTS) is None:
        raise ConfigError(plugins.unknown("method", name, METHODS, ENTRY_POINTS, "package.module:NAME"))
    return name


def peft_arguments(method: Method, adapter: AdapterConfig) -> dict[str, Any] | None:
    """Return the arguments of PEFT's LoraConfig; None for a method without an adapter."""
    if method.lora is None:
        return None
    return {
        "task_type": "CAUSAL_LM",
        "r": adapter.r,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": sorted(adapter.targets),
        **method.lora,
    }


def check_targets(targets: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError if a target is not a linear layer of the decoder; the message names the nearest one."""
    for target in targets:
        if target not in known:
            hint = did_you_mean(target, known, f"they are {', '.join(sorted(known))}")
            raise ConfigError(f"adapter.targets: no linear layer of the decoder is named {target!r}; {hint}")


def check_layers(trained: int, count: int) -> None:
    """Raise ConfigError if more layers are to be trained than the model has."""
    if trained > count:
        raise ConfigError(f"adapter.freeze_layers: {trained} layers are to be trained, and the model has {count}")
