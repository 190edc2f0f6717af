"""The role of each parameter for the optimizer: its learning rate, its weight decay, and its name in the record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer_config import ParamKey, ParamPredicate
from megatron.core.optimizer_param_scheduler import ParamGroupOverride

from efficientbench.config.training import TrainingConfig
from efficientbench.model.initial_weights import EMBEDDING, global_parameters
from efficientbench.model.layers import QUANTILES
from efficientbench.model.position import POSITION_TABLE

Role = Literal["matrices", "embedding", "head", "others"]
"""Matrices of the layers; the embedding, tied or not; an untied output projection; all other parameters: norms, biases,
routers and tables of positions."""


def decays(parameter: torch.nn.Parameter) -> bool:
    """Return whether a parameter has weight decay: the matrices of linear layers, router, embedding and output do.

    Norms and biases have none, nor have tables of positions, which `model.position.position_table` marks, nor what has
    an initial law of its own, such as short convolutions.
    """
    return parameter.dim() > 1 and not hasattr(parameter, POSITION_TABLE) and not hasattr(parameter, QUANTILES)


def parameter_roles(stages: list[DistributedDataParallel]) -> dict[torch.nn.Parameter, Role]:
    """Return the role of each of this rank's parameters."""
    return {parameter: _role(name, parameter) for name, parameter in _named(stages)}


def _role(name: str, parameter: torch.nn.Parameter) -> Role:
    if name == EMBEDDING:
        return "embedding"
    if name == "output_layer.weight":
        return "head"
    in_layer = name.startswith("decoder.layers.") and not name.endswith(".router.weight")
    return "matrices" if in_layer and decays(parameter) else "others"


def group_overrides(
    roles: Mapping[torch.nn.Parameter, Role], training: TrainingConfig
) -> dict[ParamKey, ParamGroupOverride]:
    """Return the overrides that split the parameters into groups of Megatron's optimizer.

    A role whose rate is not `training.learning_rate` has the factor `lr_mult`; parameters without weight decay have
    `wd_mult` = 0.
    """
    found = {_key("does not decay", {each for each in roles if not decays(each)}): ParamGroupOverride(wd_mult=0.0)}  # type: ignore[typeddict-item]
    for role, rate in rates(training).items():
        if rate != training.learning_rate:
            own = {each for each, its_role in roles.items() if its_role == role}
            found[_key(role, own)] = ParamGroupOverride(lr_mult=rate / training.learning_rate)  # type: ignore[typeddict-unknown-key, typeddict-item]
    return found


def rates(training: TrainingConfig) -> dict[Role, float]:
    """Return the learning rate of each role at the peak of the schedule."""
    return {
        "matrices": training.matrix_rate,
        "embedding": training.embedding_rate,
        "head": training.head_rate,
        "others": training.learning_rate,
    }


def _key(name: str, parameters: set[torch.nn.Parameter]) -> ParamKey:
    return ParamKey(predicate=ParamPredicate(name, parameters.__contains__))


def decayed_names(stages: list[DistributedDataParallel]) -> set[str]:
    """Return the names of this rank's parameters with weight decay, with `*` for the layer's number."""
    return {_without_number(name) for name, parameter in _named(stages) if decays(parameter)}


def role_names(stages: list[DistributedDataParallel]) -> dict[str, list[str]]:
    """Return the names of this rank's parameters by role, with `*` for the layer's number."""
    found: dict[str, set[str]] = {}
    for name, parameter in _named(stages):
        found.setdefault(_role(name, parameter), set()).add(_without_number(name))
    return {role: sorted(names) for role, names in found.items()}


def _named(stages: list[DistributedDataParallel]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    for stage in stages:
        yield from global_parameters(stage.module).items()


def _without_number(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name)
