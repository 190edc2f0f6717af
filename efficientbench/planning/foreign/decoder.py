"""A decoder by the shapes of its layers, and what it has and costs as a whole, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from efficientbench.costs.model import COUNTER_BYTES, Flops
from efficientbench.planning.foreign.mixers import Mixer


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
    def hidden(self) -> int:
        return (*self.mixers, *self.feed_forward)[0].hidden

    def parts(self, figure: Callable[[Mixer | FeedForward | Experts], int]) -> int:
        """Return the sum of a figure over mixers and feed-forward networks."""
        return sum(map(figure, (*self.mixers, *self.feed_forward)))

    @property
    def parameters(self) -> int:
        return self.norms + self.parts(lambda part: part.parameters)


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
