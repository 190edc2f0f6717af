"""Methods of fine-tuning outside this project, as their user would write them."""

from typing import Any

from efficientbench.finetuning.methods import AdapterConfig, Method


def choose_norms(model: Any, adapter: AdapterConfig) -> None:
    """Train the weights of the norms alone."""
    for name, weight in model.named_parameters():
        weight.requires_grad_("norm" in name)


NORMS = Method(choose=choose_norms)
GAUSSIAN = Method(lora={"init_lora_weights": "gaussian"}, formulas="lora")
