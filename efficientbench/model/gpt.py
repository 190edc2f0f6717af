"""This pipeline stage's model.

S = sequence, B = micro-batch, H = hidden size, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch.overrides import TorchFunctionMode

from efficientbench.config.layout import padded_vocab_size
from efficientbench.config.schema import RunConfig
from efficientbench.model import context_parallel, megatron_patches
from efficientbench.model.initial_weights import initialize
from efficientbench.model.kernels import attention_shape
from efficientbench.model.kernels.attention_choice import DEFAULT, KERNELS, AttentionKernel, choose
from efficientbench.model.kernels.cross_entropy import linear_cross_entropy
from efficientbench.model.layer_spec import block_spec, transformer_config
from efficientbench.model.moe import take_routing
from efficientbench.model.position import build_position
from efficientbench.model.position.base import Position


class GPT(GPTModel):
    """megatron's GPTModel, with a loss that never holds the logits of a batch."""

    def __init__(
        self,
        config: TransformerConfig,
        spec: TransformerBlockSubmodules,
        position: Position,
        vocab_size: int,
        seq_len: int,
        vp_stage: int | None = None,
    ) -> None:
        """`vp_stage`: which of this rank's virtual pipeline stages; None where it has but one stage."""
        super().__init__(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=padded_vocab_size(vocab_size, config.tensor_model_parallel_size),
            max_sequence_length=seq_len,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=True,
            # Positions are of model/position.
            position_embedding_type="none",
            vp_stage=vp_stage,
        )
        self.position = position
        self.register_parameter("position_table", position.table)
        self.unpadded_vocab_size = vocab_size

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor | None = None,
        loss_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One micro-batch through this stage.

        Args:
            tokens: [B, S]; read by the first stage only.
            labels, loss_mask: [B, S]; read by the last stage.

        Returns:
            Hidden states [S, B, H] (before the last stage); else the sum of the masked tokens' losses, a float32
            scalar; else, without labels, this rank's logits [B, S, V].
        """
        hidden = self.decoder(hidden_states=self._embed(tokens) if self.pre_process else None, attention_mask=None)
        if not self.post_process:
            return hidden
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, group=self.tp_group)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden, group=self.tp_group)
        embedding = self.shared_embedding_or_output_weight()
        first_token = self.tp_group.rank() * embedding.shape[0]
        vocabulary = min(max(self.unpadded_vocab_size - first_token, 0), embedding.shape[0])
        if labels is None or loss_mask is None:
            return torch.matmul(hidden, embedding[:vocabulary].t()).transpose(0, 1)
        return linear_cross_entropy(
            hidden.flatten(0, 1),
            embedding,
            vocabulary,
            labels.t().flatten() - first_token,
            loss_mask.t().flatten().float(),
            self.tp_group,
            self.config.loss_kernel,
        )

    def take_routing(self) -> torch.Tensor | None:
        """What the routers have counted since the last call: see `model.moe.take_routing`."""
        return take_routing(self)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [B, S] → [S, B, H], or with sequence parallelism this rank's part of the sequence."""
        embedded: torch.Tensor = self.embedding(tokens, position_ids=None)
        positions = context_parallel.positions(tokens.shape[1], embedded.device)
        if self.config.sequence_parallel:
            positions = positions.chunk(self.tp_group.size())[self.tp_group.rank()]
        return self.position.embed(embedded, positions)


def build_stages(config: RunConfig, device: torch.device) -> list[GPT]:
    """What this rank computes of the model, on its device, with its initial weights: one stage, or as many as the
    pipeline has virtual stages on each rank.

    Needs the process groups of training/groups.py; all ranks must call it together.
    """
    # Before any stage is built: to build the first and the last one is to wait for the other, and ranks have them at
    # different places in their order.
    attention_kernel = _attention_kernel(config, device)
    virtual_stages = range(config.parallel.vpp) if config.parallel.vpp > 1 else [None]
    stages = []
    for vp_stage in virtual_stages:
        with device:
            stages.append(_construct(config, vp_stage, attention_kernel))
        initialize(stages[-1], config.model, config.training.seed)
    return stages


def build_stage(config: RunConfig, device: torch.device) -> GPT:
    """The stage of this rank, where it has but one."""
    (stage,) = build_stages(config, device)
    return stage


def _attention_kernel(config: RunConfig, device: torch.device) -> AttentionKernel:
    """The same on all ranks: a kernel that is a little slower on some of them is no reason to mix two."""
    shape = attention_shape(config)
    if shape is None or config.parallel.cp > 1:
        return DEFAULT
    chosen = [choose(config.kernels.attention, shape, device.type).name]
    torch.distributed.broadcast_object_list(chosen, src=0)
    return KERNELS.get(chosen[0], DEFAULT)


def stages_on_meta(config: RunConfig) -> list[GPT]:
    """The same stages as `build_stages` gives, with shapes and no memory: none of their parameters can be computed
    with."""
    with torch.device("meta"), _OnMeta():
        return [_construct(config, index if config.parallel.vpp > 1 else None) for index in range(config.parallel.vpp)]


class _OnMeta(TorchFunctionMode):
    """Puts on the meta device what names another: megatron asks for the accelerator by its name."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs and kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        return func(*args, **(kwargs or {}))


def _construct(config: RunConfig, vp_stage: int | None, attention_kernel: AttentionKernel = DEFAULT) -> GPT:
    """One stage on torch's default device, its weights as they come."""
    megatron_patches.apply()
    engine = transformer_config(config, attention_kernel)
    first_stage = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
    position = build_position(config.model, engine, first_stage)
    spec = block_spec(config, position)
    return GPT(engine, spec, position, config.model.vocab_size, config.training.seq_len, vp_stage)
