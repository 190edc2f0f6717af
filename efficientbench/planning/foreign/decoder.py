"""A decoder by the shapes of its layers, and what it has and costs as a whole, without torch.

Its memory and work on one rank are by the formulas of costs/memory.py and costs/compute.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from efficientbench.config.schema import KernelsConfig
from efficientbench.costs.compute import Work, Works
from efficientbench.costs.memory import RankMemory
from efficientbench.costs.model import COUNTER_BYTES, FLOAT32_BYTES, Flops
from efficientbench.planning.foreign.mixers import Mixer

BF16_BYTES = 2


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward network: gate, up and down, or up and down alone."""

    hidden: int
    width: int
    matrices: int = 3
    bias: bool = False
    further: int = 0
    """Parameters of the activation."""
    idle: int = 0
    """Parameters that a token does not visit."""

    @property
    def weights(self) -> int:
        """Elements of the matrices."""
        return self.matrices * self.hidden * self.width

    @property
    def active_weights(self) -> int:
        """Elements of the matrices that compute a token."""
        return self.weights

    @property
    def parameters(self) -> int:
        biases = (self.matrices - 1) * self.width + self.hidden if self.bias else 0
        return self.weights + biases + self.further

    @property
    def saved(self) -> int:
        """Elements per token that training keeps inside."""
        return self.matrices * self.width

    @property
    def inner(self) -> int:
        """Elements per token between the matrices."""
        return self.saved


@dataclass(frozen=True)
class Experts:
    """A router with experts, of which a token visits `top_k`, and with shared experts, which every token visits."""

    expert: FeedForward
    count: int
    top_k: int
    shared: FeedForward | None = None
    shared_gate: bool = False
    router_bias: bool = False
    """Whether the router has a bias that is a parameter."""

    @property
    def _router(self) -> int:
        return self.hidden * (self.count + self.shared_gate)

    @property
    def weights(self) -> int:
        return self._router + self.count * self.expert.weights + (self.shared.weights if self.shared else 0)

    @property
    def active_weights(self) -> int:
        return self._router + self.top_k * self.expert.weights + (self.shared.weights if self.shared else 0)

    @property
    def parameters(self) -> int:
        shared = self.shared.parameters if self.shared else 0
        return self._router + self.router_bias * self.count + self.count * self.expert.parameters + shared

    @property
    def idle(self) -> int:
        return (self.count - self.top_k) * self.expert.parameters

    @property
    def hidden(self) -> int:
        return self.expert.hidden

    @property
    def inner(self) -> int:
        return self.top_k * self.expert.inner + (self.shared.inner if self.shared else 0)

    @property
    def saved(self) -> int:
        """Elements per token: each visited expert also keeps its input and output."""
        return self.inner + 2 * self.top_k * self.hidden


@dataclass(frozen=True)
class Layer:
    """A layer: mixers that see the same input, a feed-forward part, and norms."""

    mixers: tuple[Mixer, ...]
    feed_forward: tuple[FeedForward | Experts, ...]
    norms: int
    """Parameters of its norms on the residual stream."""

    @property
    def parameters(self) -> int:
        return self.norms + sum(part.parameters for part in (*self.mixers, *self.feed_forward))


@dataclass(frozen=True)
class DecoderShape:
    """A decoder that a configuration describes."""

    model_type: str
    hidden: int
    vocabulary: int
    layers: tuple[tuple[Layer, int], ...]
    """Each kind of layer with the number of its layers."""
    tied: bool
    further: int
    """Parameters outside of layers and vocabulary tables: the last norm, biases of the logits, learned positions."""
    positions: int | None = None
    """Tokens of the longest sequence for which it has learned positions; None: it has no table of positions."""
    notes: tuple[str, ...] = ()
    """What is not counted, and why."""

    def over_layers(self, figure: Callable[[Layer], int]) -> int:
        """Return the sum of a figure over all layers."""
        return sum(count * figure(layer) for layer, count in self.layers)

    def _over_mixers(self, figure: Callable[[Mixer], int]) -> int:
        return self.over_layers(lambda layer: sum(map(figure, layer.mixers)))

    @property
    def table(self) -> int:
        """Elements of one vocabulary table."""
        return self.vocabulary * self.hidden

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        tables = self.table * (1 if self.tied else 2)
        return tables + self.further + self.over_layers(lambda layer: layer.parameters)

    @cached_property
    def active(self) -> int:
        """Parameters that take part in computing a token."""
        return self.parameters - self.over_layers(lambda layer: sum(part.idle for part in layer.feed_forward))

    def flops(self, seq_len: int) -> Flops:
        """Return FLOPs per token in sequences of `seq_len` tokens."""
        linear = 2 * self.over_layers(matrix_weights) + 2 * self.table
        causal = self._over_mixers(lambda mixer: mixer.causal_flops(seq_len))
        square = self._over_mixers(lambda mixer: mixer.square_flops(seq_len))
        return Flops(forward=linear + causal, recomputed=0, forward_full_square=linear + square)

    def cache_bytes(self, tokens: int, element_bytes: int) -> int:
        """Return the bytes that decoding keeps of a sequence with room for `tokens` tokens."""
        return self._over_mixers(lambda mixer: mixer.state_bytes(tokens, element_bytes)) + COUNTER_BYTES

    def added_bytes(self, element_bytes: int) -> int:
        """Return the bytes that a further token adds to the cache of a sequence longer than all windows."""
        long = 1 << 40
        return self.cache_bytes(long + 1, element_bytes) - self.cache_bytes(long, element_bytes)


def matrix_weights(layer: Layer) -> int:
    """Count the elements of a layer's matrices that compute a token."""
    return sum(mixer.weights for mixer in layer.mixers) + sum(part.active_weights for part in layer.feed_forward)


def training_memory(shape: DecoderShape, seq_len: int, runtime_bytes: int, kernels: KernelsConfig) -> RankMemory:
    """Estimate the memory of training with AdamW in bfloat16 on one rank, with one sequence in a micro-batch."""
    hidden, count, table = shape.hidden, shape.parameters, shape.table * BF16_BYTES
    waiting = table if shape.tied else 0
    widest = max(_inner(layer) for layer, _ in shape.layers)
    block = min(max(kernels.loss_block // shape.vocabulary, 1), seq_len) * shape.vocabulary
    copies = 2 * BF16_BYTES if kernels.fused else FLOAT32_BYTES + 2 * BF16_BYTES
    layer = waiting + seq_len * (widest + 2 * hidden) * BF16_BYTES
    loss = block * copies + table + seq_len * hidden * BF16_BYTES
    return RankMemory(
        weights=count * BF16_BYTES,
        gradients=count * FLOAT32_BYTES,
        master_weights=count * FLOAT32_BYTES,
        adam_moments=count * 2 * FLOAT32_BYTES,
        muon_momentum=0,
        activations=seq_len * (shape.over_layers(lambda layer: _saved(layer, hidden)) + 2 * hidden) * BF16_BYTES,
        workspace=max(layer, waiting + table, loss),
        runtime=runtime_bytes,
    )


def generation_memory(shape: DecoderShape, context: int, runtime_bytes: int) -> int:
    """Estimate the memory of weights in bfloat16, of one sequence's cache, and of a layer's tensors for its prompt."""
    inner = max(sum(part.inner for part in layer.feed_forward) for layer, _ in shape.layers)
    prompt = context * (inner + 4 * shape.hidden) * BF16_BYTES
    return shape.parameters * BF16_BYTES + shape.cache_bytes(context, BF16_BYTES) + prompt + runtime_bytes


def training_work(shape: DecoderShape, seq_len: int, kernels: KernelsConfig) -> dict[str, Works]:
    """Return the work of one sequence, forward and backward, by kind; the optimizer's is not in it."""
    residual, fused = seq_len * shape.hidden * BF16_BYTES, bool(kernels.fused)
    work: dict[str, Works] = {"matmuls": (), "attention": (), "norms": (), "elementwise": ()}
    for layer, count in shape.layers:
        weights, inner = matrix_weights(layer), sum(part.inner for part in layer.feed_forward)
        held = sum(part.weights for part in (*layer.mixers, *layer.feed_forward))
        widths = inner + 3 * shape.hidden + 2 * sum(mixer.weights for mixer in layer.mixers) // shape.hidden
        moved = held * 2 * (BF16_BYTES + FLOAT32_BYTES) + 3 * seq_len * widths * BF16_BYTES
        causal = sum(mixer.causal_flops(seq_len) for mixer in layer.mixers)
        saved = sum(mixer.saved for mixer in layer.mixers)
        # As in costs/compute.py: fused kernels read inputs and write outputs alone.
        rotated = sum((4 if fused else 6) * mixer.rotated for mixer in layer.mixers)
        values = seq_len * (inner * (8 if fused else 17) / 3 + rotated)
        each = {
            "matmuls": Work(2 * weights * 3 * seq_len, moved),
            "attention": Work(3 * seq_len * causal, 3 * seq_len * saved * BF16_BYTES),
            "norms": Work(0, 5 * _parts(layer) * residual),
            "elementwise": Work(0, values * BF16_BYTES + (4.5 if fused else 6) * _parts(layer) * residual),
        }
        for kind, part in each.items():
            work[kind] += (part.times(count),)
    table, logits = shape.table, 3 * seq_len * shape.vocabulary
    work["embedding"] = (Work(0, table * 2 * (BF16_BYTES + FLOAT32_BYTES) + 4 * residual),)
    softmax = logits / 3 * (4 * BF16_BYTES if fused else 11 * FLOAT32_BYTES + 2 * BF16_BYTES)
    blocks = -(-seq_len // max(kernels.loss_block // shape.vocabulary, 1))
    moved = table * blocks * 2 * (BF16_BYTES + FLOAT32_BYTES) + logits * BF16_BYTES
    work["loss"] = Work(2 * logits * shape.hidden, moved), Work(0, softmax)
    return work


def decode_work(shape: DecoderShape, tokens: int) -> dict[str, Works]:
    """Return the work of the `tokens`-th token of one sequence: weights and state are moved once."""
    flops = shape.over_layers(lambda layer: sum(mixer.decode_flops(tokens) for mixer in layer.mixers))
    weights = shape.active - (0 if shape.tied else shape.table)
    linear = 2 * (shape.over_layers(matrix_weights) + shape.table)
    return {
        "matmuls": (Work(linear, weights * BF16_BYTES),),
        "attention": (Work(flops, shape.cache_bytes(tokens, BF16_BYTES)),),
    }


def _inner(layer: Layer) -> int:
    return sum(part.saved for part in layer.feed_forward)


def _parts(layer: Layer) -> int:
    """Return how many times a layer reads the residual stream and adds to it."""
    return bool(layer.mixers) + bool(layer.feed_forward)


def _saved(layer: Layer, hidden: int) -> int:
    """Count the elements per token that a layer keeps: of each part also the input and the output of its norm."""
    return 2 * _parts(layer) * hidden + sum(mixer.saved for mixer in layer.mixers) + _inner(layer)
