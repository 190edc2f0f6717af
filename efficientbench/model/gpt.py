"""The model of one pipeline stage.

S = sequence, B = micro-batch, H = hidden size, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules, get_transformer_layer_offset
from torch.distributed import ProcessGroup
from torch.overrides import TorchFunctionMode

from efficientbench.architecture.model import OWN_LAYER, ModelConfig
from efficientbench.architecture.variant import imported
from efficientbench.config.layout import padded_vocab_size
from efficientbench.config.schema import RunConfig
from efficientbench.devices.registry import device_called
from efficientbench.model import context_parallel, megatron_patches, moe
from efficientbench.model.cache import Cache
from efficientbench.model.documents import Documents
from efficientbench.model.engine_config import transformer_config
from efficientbench.model.initial_weights import global_tensors, initialize, set_weights
from efficientbench.model.kernels.causal_attention import KERNELS, AttentionKernel, causal_attention
from efficientbench.model.kernels.choose_attention import AttentionShape, choose
from efficientbench.model.kernels.cross_entropy import linear_cross_entropy
from efficientbench.model.kernels.product import linear_of_few
from efficientbench.model.kernels.quantized import share_quantized
from efficientbench.model.layers import Layer, RMSNorm, feed_forward_spec
from efficientbench.model.position import Position, build_position


class OutputLayer(ColumnParallelLinear):
    """The output projection as a module that passes its table to its caller's function.

    The table is read in a call of the module, because Megatron waits there for weights that it gathers during the
    forward pass.
    """

    def forward(self, use: Callable[[torch.Tensor], torch.Tensor], table: torch.Tensor | None = None) -> torch.Tensor:
        """Call `use` with the module's own table, or with `table` of another module, and return its result."""
        return use(self.weight if table is None else table)


class GPT(GPTModel):
    """Megatron's GPTModel with a loss that never holds the logits of a whole batch."""

    def __init__(
        self,
        config: TransformerConfig,
        spec: TransformerBlockSubmodules,
        position: Position,
        model: ModelConfig,
        seq_len: int,
        vp_stage: int | None = None,
    ) -> None:
        """`vp_stage`: number of this virtual pipeline stage on its rank; None where the rank has one stage."""
        super().__init__(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=padded_vocab_size(model.vocab_size, config.tensor_model_parallel_size),
            max_sequence_length=seq_len,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=model.tied,
            # model/position.py has more encodings than Megatron.
            position_embedding_type="none",
            vp_stage=vp_stage,
        )
        self.position = position
        self.register_parameter("position_table", position.table)
        self.unpadded_vocab_size, self.embedding_multiplier = model.vocab_size, model.embedding_multiplier
        self.logit_softcap = model.logit_softcap
        if self.post_process:
            # Megatron builds a ColumnParallelLinear and takes no other class.
            self.output_layer.__class__ = OutputLayer
        self.cache: Cache | None = None
        """The cache that forward passes read and extend, while one is bound (`Cache.bound`)."""
        normed = model.embedding_norm and self.pre_process
        self.embedding_norm = RMSNorm(config, model.hidden_size, model.norm_epsilon) if normed else None

    def _is_in_embd_group(self) -> bool:
        # Megatron reduces the table over such ranks: on the meta device it has no values, and torch 2.6 no reduction.
        return super()._is_in_embd_group() and not self.shared_embedding_or_output_weight().is_meta

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor | None = None,
        loss_mask: torch.Tensor | None = None,
        only: torch.Tensor | None = None,
        documents: Documents | None = None,
    ) -> torch.Tensor:
        """Compute one micro-batch on this stage.

        Args:
            tokens: [B, S] token ids; read by the first stage only.
            labels: [B, S] target ids; read by the last stage only. None: return logits.
            loss_mask: [B, S] weights of the targets' losses; read by the last stage only. None: return logits.
            only: [B, n] positions in each row whose logits to return, or [B], one for each row; None: all.
            documents: the documents within which tokens attend; None: each row is one.

        Returns:
            Before the last stage: hidden states [S, B, H]. On it, with labels: the weighted sum of losses in float32,
            a scalar in training, [B] (one for each sequence) in evaluation. Without labels: this tensor-parallel
            rank's logits [B, S, V], or [B, n, V] for `only`.
        """
        embedded = self._embed(tokens, documents) if self.pre_process else None
        hidden = self.decoder(hidden_states=embedded, attention_mask=None, packed_seq_params=documents)
        if not self.post_process:
            return hidden
        if only is not None:
            hidden = hidden[only.view(len(only), -1).t(), torch.arange(len(only), device=only.device)]
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, group=self.tp_group)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden, group=self.tp_group)
        looked_up = self.share_embeddings_and_output_weights and self.pre_process
        table = self.shared_embedding_or_output_weight() if looked_up else None
        return self.output_layer(partial(self._output, hidden, labels, loss_mask, looked_up), table)

    def _output(
        self,
        hidden: torch.Tensor,
        labels: torch.Tensor | None,
        loss_mask: torch.Tensor | None,
        looked_up: bool,
        table: torch.Tensor,
    ) -> torch.Tensor:
        """Return the last stage's losses or logits (see `forward`), by the output projection's `table` [rows, H]."""
        first_token = self.tp_group.rank() * table.shape[0]
        vocabulary = min(max(self.unpadded_vocab_size - first_token, 0), table.shape[0])
        softcap = self.logit_softcap
        if labels is None or loss_mask is None:
            logits = linear_of_few(hidden, table[:vocabulary]).transpose(0, 1)
            return logits if softcap is None else softcap * torch.tanh(logits / softcap)

        def loss(rows: slice) -> torch.Tensor:
            return linear_cross_entropy(
                hidden[:, rows].flatten(0, 1),
                table,
                vocabulary,
                labels[rows].t().flatten() - first_token,
                loss_mask[rows].t().flatten().float(),
                self.tp_group,
                self.config.loss_kernel,
                softcap,
                looked_up,
            )

        if self.training:
            return loss(slice(None))
        return torch.stack([loss(slice(row, row + 1)) for row in range(len(labels))])

    @property
    def expert_group(self) -> ProcessGroup | None:
        """The ranks that share the experts and so run every forward pass together; None without expert parallelism."""
        if self.config.expert_model_parallel_size == 1:
            return None
        return parallel_state.get_expert_model_parallel_group()

    def _embed(self, tokens: torch.Tensor, documents: Documents | None = None) -> torch.Tensor:
        """Embed tokens [B, S] → [S, B, H]; with sequence parallelism this rank's part of the sequence."""
        embedded: torch.Tensor = self.embedding(tokens, position_ids=None)
        if self.cache is not None:
            positions = self.cache.begin(tokens, self.position).positions
        elif documents is not None:
            positions = documents.positions
        else:
            positions = context_parallel.positions(tokens.shape[1], embedded.device)
        if self.config.sequence_parallel:
            positions = positions.chunk(self.tp_group.size())[self.tp_group.rank()]
        embedded = self.position.embed(embedded, positions)
        embedded = embedded if self.embedding_multiplier == 1 else embedded * self.embedding_multiplier
        return embedded if self.embedding_norm is None else self.embedding_norm(embedded)


def build_stages(config: RunConfig, device: torch.device) -> list[GPT]:
    """Build this rank's part of the model on its device, with its initial weights.

    The process groups of training/groups.py must exist; all ranks call this together.

    Returns:
        One stage, or one for each virtual stage of this rank.
    """
    # First, because it is a collective of all ranks. The first and the last stage wait for each other while they are
    # built, and ranks reach them at different points of their order.
    kernels = {name: _attention_kernel(config.with_view(view), device) for name, view in config.model.views.items()}
    virtual_stages = range(config.parallel.vpp) if config.parallel.vpp > 1 else [None]
    draws = config.training.draw_weights_on == "device" and device_called(device.type).draws_weights
    stages = []
    for vp_stage in virtual_stages:
        with device:
            stages.append(_construct(config, vp_stage, kernels))
        initialize(stages[-1], config.model, config.training.seed, device if draws else torch.device("cpu"))
    return stages


def trained_model(config: RunConfig, device: torch.device, weights: Mapping[str, torch.Tensor]) -> GPT:
    """Build this tensor-parallel rank's part of a run's model for evaluation, without pipeline stages.

    Args:
        config: the run's configuration, with the layout of the evaluation.
        device: this rank's device.
        weights: full weights by global name (see `set_weights`).

    Raises:
        ConfigError: the weights are of another model.
    """
    with device:
        model = _construct(config, None)
    set_weights(model, config.model, weights)
    return model.eval()


def same_model(model: GPT, config: RunConfig, device: torch.device) -> GPT:
    """Build a second model with the weights of `model`; on the same device the two share the weights' memory.

    Each of the two can have a cache of its own.
    """
    with device:
        another = _construct(config, None)
    share_quantized(model, another, device)
    of_model = global_tensors(model)
    for name, mine in global_tensors(another).items():
        mine.data = of_model[name].data.to(device)
    return another.eval()


def _attention_kernel(config: RunConfig, device: torch.device) -> AttentionKernel:
    """Return the kernel of causal attention: rank 0's choice on all ranks, since their measurements may differ."""
    if config.parallel.cp > 1:
        return context_parallel.attention
    shape = AttentionShape.of(config)
    if shape is None:
        return causal_attention
    names = ["", *KERNELS]
    chosen = choose(config.kernels.attention, shape, device.type, Path(config.data.cache)).name
    index = torch.tensor([names.index(chosen) if chosen in KERNELS else 0], device=device)
    torch.distributed.broadcast(index, src=0)
    return KERNELS.get(names[int(index)], causal_attention)


def stages_on_meta(config: RunConfig) -> list[GPT]:
    """Build the stages of `build_stages` on the meta device: parameters have shapes, but neither memory nor values."""
    with torch.device("meta"), _OnMeta():
        return [_construct(config, index if config.parallel.vpp > 1 else None) for index in range(config.parallel.vpp)]


class _OnMeta(TorchFunctionMode):
    """Redirects every tensor to the meta device, because Megatron names the accelerator explicitly."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs and kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        return func(*args, **(kwargs or {}))


def _construct(
    config: RunConfig, vp_stage: int | None, attention_kernels: Mapping[str, AttentionKernel] | None = None
) -> GPT:
    """Construct one stage on torch's default device, with uninitialized weights.

    `attention_kernels`: the kernel of causal attention by the kind of layer; None: the device's own.
    """
    megatron_patches.apply()
    model, kernels = config.model, attention_kernels or {}
    engines = {
        name: transformer_config(config.with_view(view), kernels.get(name, causal_attention))
        for name, view in model.views.items()
    }
    own = model.own_view
    if model.pattern is None:
        engine = engines[OWN_LAYER]
    else:
        # Megatron reads the number of experts of the model, where it scales their auxiliary loss.
        views = sorted(model.views.values(), key=lambda view: view.moe is None)
        engine = transformer_config(config.with_view(views[0]))
        # Megatron reads it of the model, where it sums the gradients of these norms over tensor-parallel ranks.
        engine.qk_layernorm = any(view.qk_norm for view in model.views.values())
        engine.heterogeneous_block_specs = True
        engine.of_layers = tuple(engines[name] for name in model.layer_kinds)
    first_stage = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
    position = build_position(own, engine, first_stage)
    specs = {}
    for number, (name, view) in enumerate(model.views.items(), 1):
        # Kinds with the model's own encoding share it, with its table and its angles.
        turned = view.position_variant.place == "queries and keys" and view.rotated_dim != own.rotated_dim
        if view.position == own.position and not turned:
            mine = position
        else:
            mine = build_position(view, engines[name], first_stage)
            mine.number = number
        specs[name] = _layer_spec(view, mine)
    size = model.layers // (config.parallel.pp * config.parallel.vpp)
    first = get_transformer_layer_offset(engine, vp_stage)
    layers = [specs[name] for name in model.layer_kinds[first : first + size]]
    spec = TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm)
    return GPT(engine, spec, position, own, config.training.seq_len, vp_stage)


def _layer_spec(model: ModelConfig, position: Position) -> ModuleSpec:
    """Return the spec of a layer of a kind from the kind's view."""
    return ModuleSpec(
        module=Layer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=imported(model.attention_variant.layer)(model, position),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=moe.spec() if model.moe else feed_forward_spec(),
            mlp_bda=get_bias_dropout_add,
        ),
    )
