"""Formulas for the parameters, FLOPs and memory of a fine-tuning, by method and ZeRO stage, without torch.

P = parameters of the base model, T = trained parameters, N = ranks, s = tokens of a sample, V = vocabulary,
h = hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from efficientbench.costs.model import FLOAT32_BYTES, dense_keys_per_query
from efficientbench.finetuning.planning.shapes import Shape

Offload = Literal["none", "optimizer", "all"]

BF16_BYTES = 2
OPTIMIZER_BYTES = 12
"""Bytes per trained parameter: float32 master weight and AdamW's two moments."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
"""The tile of tokens × vocabulary whose logits TRL's loss holds at a time (trl.kernels.chunked_logprob)."""
TILE_BYTES = 30
"""Bytes per logit of a tile if torch computes the loss: the logit, and float32 logs, probabilities and gradients."""
TRITON_TILE_BYTES = 2
"""Bytes per logit of a tile if a Triton kernel computes the loss in place, as on GPUs."""
LIVE_NUMBERS = 1_000_000_000
"""The most gathered weights at a time: DeepSpeed's `stage3_max_live_parameters`."""


@dataclass(frozen=True)
class Trained:
    """The trained part of the model."""

    method: str
    """'full', 'freeze', 'dora', or any other adapter: `Method.formulas`."""
    r: int
    """The rank of the adapters."""
    targets: tuple[str, ...]
    """The linear layers with an adapter."""
    freeze_layers: int
    """The number of last decoder layers that `freeze` trains."""

    @property
    def adapts(self) -> bool:
        """Whether adapters are trained and the base model's weights are frozen."""
        return self.method not in ("full", "freeze")

    def tensors(self, shape: Shape) -> list[int]:
        """Return the sizes of one layer's adapter tensors: A [r, in], B [out, r], with dora also magnitudes [out]."""
        sizes = []
        for inputs, outputs in (shape.matrices[name] for name in self.targets):
            sizes += [self.r * inputs, self.r * outputs, *([outputs] if self.method == "dora" else [])]
        return sizes

    def parameters(self, shape: Shape) -> int:
        """Count the trained parameters, T."""
        if self.method == "full":
            return shape.parameters
        if self.method == "freeze":
            return self.layers(shape) * shape.layer_parameters
        return shape.layers * sum(self.tensors(shape))

    def layers(self, shape: Shape) -> int:
        """Count the decoder layers of the backward pass."""
        return min(self.freeze_layers, shape.layers) if self.method == "freeze" else shape.layers

    def frozen(self, shape: Shape) -> int:
        """Count the frozen parameters."""
        return shape.parameters if self.adapts else shape.parameters - self.parameters(shape)

    def frozen_backward(self, shape: Shape) -> int:
        """Count the frozen parameters that the backward pass reads; it ends at the lowest trained layer."""
        return shape.table if self.method == "freeze" else self.frozen(shape)


@dataclass(frozen=True)
class TuningFlops:
    """FLOPs per token in matrix products; a multiply-add counts as two."""

    training: float
    """Forward and backward, with causal attention counted half, and logits only of tokens with a loss."""
    recomputed: float
    """FLOPs of the forward pass that the backward pass recomputes, and of logits without a loss."""

    @property
    def hardware(self) -> float:
        """The FLOPs per token that the device computes."""
        return self.training + self.recomputed


def tuning_flops(
    shape: Shape, trained: Trained, tokens: float, recompute: bool, scored: float = 1.0, projected: float = 1.0
) -> TuningFlops:
    """Count the FLOPs per token in samples of `tokens` tokens.

    A trained weight costs 6 FLOPs per token: forward, input gradient, weight gradient. A frozen weight has no weight
    gradient and costs 4, or 2 below the lowest trained layer, where there is no backward pass. LoRA hence takes
    4·P + 3·A + 6·L per token, with A = forward attention and L = the adapters; the pretraining formula 6·P + 3·A would
    overstate its utilization. DoRA's computations on its weights in each micro-batch are not counted.
    The loss recomputes its logits in the backward pass, whatever `recompute` says.

    Args:
        shape: the base model's shape.
        trained: the trained part of the model.
        tokens: tokens of a sample; for samples of many lengths their `attended_length`.
        recompute: whether the backward pass recomputes the layers.
        scored: the share of tokens with a loss.
        projected: the share of tokens whose logits the device computes.
    """
    layers = trained.layers(shape)
    weights = shape.layer_weights
    attention = 4 * shape.query_width * dense_keys_per_query(tokens)
    adapters = sum(trained.tensors(shape)) if trained.adapts else 0
    forward = 2 * shape.layers * weights + shape.layers * attention
    backward = layers * ((2 if trained.adapts else 4) * weights + 2 * attention)
    # The output projection has an input gradient, and a weight gradient only if all weights are trained.
    logits = (6 if trained.method == "full" else 4) * shape.table
    again = layers * (2 * (weights + adapters) + attention) if recompute else 0
    again += (projected - scored) * logits + projected * 2 * shape.table
    return TuningFlops(forward + backward + 6 * shape.layers * adapters + scored * logits, again)


def attended_length(lengths: Sequence[int]) -> float:
    """Return the common length at which attention costs as much per token as in samples of these lengths.

    A sample of s tokens has s·(s + 1) / 2 pairs of query and key, so the length is the sum of s² over the sum of s.
    """
    return sum(length * length for length in lengths) / sum(lengths)


@dataclass(frozen=True)
class ZeroLayout:
    """How ranks shard a fine-tuning's states and divide its samples."""

    world: int
    per_node: int
    stage: Literal[0, 2, 3]
    """ZeRO stage. 0: every rank has all states; 2: gradients and optimizer states are sharded; 3: weights, too."""
    hpz: int
    """The number of ranks that share a secondary copy of the weights (ZeRO++, arXiv 2306.10209); 1: no copy."""
    micro: int
    """Samples per micro-batch of a rank."""
    accumulation: int
    """Micro-batches of a rank per step."""
    recompute: bool
    offload: Offload
    tokens: int
    """Tokens per sample, padding included."""
    persistence: int
    """Stage 3 does not shard tensors of at most this many elements."""
    tile_bytes: int = TILE_BYTES
    """Bytes per logit while the loss is computed."""

    @property
    def nodes(self) -> int:
        return self.world // self.per_node


def rank_memory(shape: Shape, trained: Trained, layout: ZeroLayout, runtime_bytes: int) -> dict[str, int]:
    """Return the peak memory of a rank's device by part, in bytes; the parts' peaks are added.

    States after arXiv 1910.02054, section 5, in bf16 with float32 master weights; gradients are in bf16, DeepSpeed's
    default.
    """
    number, world = BF16_BYTES, layout.world
    own, frozen = trained.parameters(shape), trained.frozen(shape)
    weights_shared = world if layout.stage == 3 else 1
    gradients_shared = world if layout.stage >= 2 else 1
    on_device = layout.offload != "all"
    parts = {
        "frozen weights": on_device * number * frozen / weights_shared,
        "trained weights": on_device * number * own / weights_shared,
        "gradients": number * own / gradients_shared,
        "optimizer": OPTIMIZER_BYTES * own / gradients_shared if layout.offload == "none" else 0,
        "activations kept": _kept_bytes(shape, trained, layout),
        "loss or one layer": max(_loss_bytes(shape, trained, layout), _layer_peak_bytes(shape, trained, layout)),
        "runtime": runtime_bytes,
    }
    if layout.stage == 3:
        if layout.hpz > 1:
            parts["second copy (hpZ)"] = number * (frozen + own) / layout.hpz
        parts["small tensors kept whole"] = number * _persistent(shape, trained, layout.persistence)
        parts["gathered weights"] = number * (min(LIVE_NUMBERS, frozen + own) + shape.table)
    if layout.stage >= 2:
        # transformers sets DeepSpeed's buckets to hidden² (reduction) and 0.9 · hidden² (prefetch).
        parts["buckets"] = number * (1.9 if layout.stage == 3 else 1) * shape.hidden**2
    return {name: round(size) for name, size in parts.items() if size}


def host_memory(shape: Shape, trained: Trained, layout: ZeroLayout) -> int:
    """Return the host memory of a rank's offloaded states, in bytes."""
    own = trained.parameters(shape)
    states = 0 if layout.offload == "none" else (OPTIMIZER_BYTES + BF16_BYTES) * own / layout.world
    weights = BF16_BYTES * (own + trained.frozen(shape)) / layout.world if layout.offload == "all" else 0
    return round(states + weights)


def layer_bytes_per_token(shape: Shape, trained: Trained) -> int:
    """Count the bytes per token that autograd saves for one decoder layer of transformers in bf16 with fused attention.

    Norms save their input in float32, and their output if their weight is trained; attention saves queries, keys,
    values, its output and a float32 sum per head; SwiGLU saves gate, its activation and up. A trained matrix saves its
    input. An adapter saves the dropout's copy of the input and mask of one byte, and its inner product.
    """
    number, h, q, k, ffn = BF16_BYTES, shape.hidden, shape.query_width, shape.key_width, shape.ffn
    normed = 2 * h + (q + k if shape.qk_norm else 0)
    # A norm also saves one factor per vector.
    factors = 2 + (shape.heads + shape.key_value_heads if shape.qk_norm else 0)
    total = FLOAT32_BYTES * (normed + factors + shape.heads) + number * (2 * q + 2 * k + 3 * ffn)
    if trained.adapts:
        copies = sum((number + 1) * shape.matrices[name][0] + number * trained.r for name in trained.targets)
        return total + copies
    return total + number * (normed + 2 * h + ffn)


def _kept_bytes(shape: Shape, trained: Trained, layout: ZeroLayout) -> int:
    """Return the bytes of all layers' saved activations; with recomputation only the layers' inputs."""
    token = BF16_BYTES * shape.hidden if layout.recompute else layer_bytes_per_token(shape, trained)
    return layout.micro * layout.tokens * trained.layers(shape) * token


def _layer_peak_bytes(shape: Shape, trained: Trained, layout: ZeroLayout) -> int:
    """Return the bytes of one layer's backward pass: recomputed activations, and gradients of inner tensors."""
    gradients = BF16_BYTES * (3 * shape.ffn + 2 * shape.hidden)
    again = layer_bytes_per_token(shape, trained) if layout.recompute else 0
    return layout.micro * layout.tokens * (again + gradients)


def _loss_bytes(shape: Shape, trained: Trained, layout: ZeroLayout) -> int:
    """Return the bytes of a tile of logits, and of the gradients of the loss's input and of a trained output table."""
    rows = layout.micro * layout.tokens
    tile = layout.tile_bytes * min(rows, TILE_TOKENS) * min(shape.vocab, TILE_VOCABULARY)
    table = (FLOAT32_BYTES + BF16_BYTES) * shape.table if trained.method == "full" else 0
    return tile + FLOAT32_BYTES * rows * shape.hidden + table


def _persistent(shape: Shape, trained: Trained, threshold: int) -> int:
    """Count the elements of tensors up to the threshold, which DeepSpeed gathers once and keeps."""
    layer = [*shape.layer_vectors, *(inputs * outputs for inputs, outputs in shape.matrices.values())]
    layer += trained.tensors(shape) if trained.adapts else []
    tables = [shape.table] * (1 if shape.tied else 2)
    small = shape.layers * sum(size for size in layer if size <= threshold)
    return small + sum(size for size in [shape.hidden, *tables] if size <= threshold)
