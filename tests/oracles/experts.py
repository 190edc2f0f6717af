"""transformers' classes of fine-grained experts, Qwen3-MoE and DeepSeek-V3, with the weights of one of our models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
import transformers
from support.exported import checkpointed

from efficientbench.architecture.model import ModelConfig
from efficientbench.config.schema import RunConfig
from efficientbench.export.architectures import architecture_of, transformers_config
from efficientbench.export.tensors import exported

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def renamed(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → by the class's, where one has a layer's experts."""
    found: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[str, list[torch.Tensor]]] = {}
    for name, tensor in exported(checkpointed(tensors, padding=0), model, architecture_of(model)):
        expert = re.fullmatch(r"(.+\.mlp\.experts)\.\d+\.(\w+)_proj\.weight", name)
        if expert is None:
            found[name] = tensor
        else:
            parts.setdefault(expert[1], {}).setdefault(expert[2], []).append(tensor)
    for place, experts in parts.items():
        gate, up, down = (torch.stack(experts[part]) for part in ("gate", "up", "down"))
        found |= {f"{place}.gate_up_proj": torch.cat([gate, up], dim=1), f"{place}.down_proj": down}
    return found


def same_weights(tensors: dict[str, torch.Tensor], config: RunConfig) -> PreTrainedModel:
    """A float32 model of the class whose weights and buffers are `tensors`, by our global names."""
    settings = transformers_config(config, architecture_of(config.model), 0)
    settings._attn_implementation, settings._experts_implementation = "eager", "eager"
    oracle = transformers.AutoModelForCausalLM.from_config(settings).float()
    missing, unexpected = oracle.load_state_dict(renamed(tensors, config.model), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied to the embedding
    return oracle
