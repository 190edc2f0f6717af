"""Convert the tensors of transformers' classes to our weights: the inverse of `tensors`, and made from it.

Export moves and splits whole rows. So it is given the numbers of a weight's rows, 1 to n, in place of the weight: what
comes out says which of our rows each foreign row is. A foreign row that is none of ours has the number 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from efficientbench.config.errors import ConfigError
from efficientbench.config.model import ModelConfig
from efficientbench.export.architectures import CLASSES, Architecture
from efficientbench.export.tensors import converted
from efficientbench.export.weight_names import weight_shapes

BUFFERS = ("rotary_emb.inv_freq",)
"""Ends of names of tensors in older folders that follow from the configuration; transformers passes over them."""
TIED = ("lm_head.weight", "model.embed_tokens.weight")


def imported(
    tensors: Mapping[str, torch.Tensor], model: ModelConfig, architecture: Architecture
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight of ours by its global name, whole.

    Args:
        tensors: of a folder, all of one dtype, by transformers' names; each is read when its turn comes.
        model: without a factor on the embedding, which no class of transformers has.
        architecture: the folder's model type.

    Raises:
        ConfigError: a tensor is missing, has another shape, is not zero where our model has none, or is none of the
            model's; the message names it.
    """
    used: set[str] = set()
    dtype = next(iter(tensors.values())).dtype
    for name, shape in weight_shapes(model).items():
        numbers = torch.arange(1, shape[0] + 1).view(-1, *[1] * (len(shape) - 1))
        weight = torch.empty(shape, dtype=dtype)
        for foreign, rows in converted(name, numbers, model, architecture).items():
            if foreign not in tensors:
                raise ConfigError(f"{foreign} is missing: config.json describes a model that has it")
            tensor = tensors[foreign]
            used.add(foreign)
            if not rows.any():
                _refuse_values(foreign, tensor)
                continue
            expected = (len(rows), *shape[1:])
            if tuple(tensor.shape) != expected:
                raise ConfigError(
                    f"{foreign} has the shape {list(tensor.shape)}; config.json makes it {list(expected)}"
                )
            if torch.equal(rows, numbers):
                # Only the name changes: what the file holds serves as it lies there.
                weight = tensor
            else:
                weight[rows.flatten() - 1] = tensor
        yield name, weight
    _refuse_surplus(tensors, used, model, architecture)


def _refuse_values(name: str, tensor: torch.Tensor) -> None:
    if tensor.any():
        raise ConfigError(f"{name} is not zero throughout, and models here have no such weight")


def _refuse_surplus(
    tensors: Mapping[str, torch.Tensor], used: set[str], model: ModelConfig, architecture: Architecture
) -> None:
    for name in sorted(tensors.keys() - used):
        if name.endswith(BUFFERS):
            continue
        if model.tied and name == TIED[0]:
            if torch.equal(tensors[name], tensors[TIED[1]]):
                continue
            raise ConfigError(
                f"{name} differs from {TIED[1]}, and tie_word_embeddings is true in config.json: false would be right"
            )
        raise ConfigError(f"{name} is no weight of a {CLASSES[architecture]} of the shapes in config.json")
