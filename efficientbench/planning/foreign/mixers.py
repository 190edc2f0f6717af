"""What mixes the tokens of a layer: attention, latents, recurrences. Formulas of each, per token and layer.

FLOPs are those of the forward pass beside the projections; a multiply-add is two. The conventions are those of our own
variants (architecture/gqa.py, architecture/mla.py), which a test holds equal. `weights` are the elements of a mixer's
matrices, each of which multiplies every token once; `saved` are the elements per token that training keeps from forward
to backward, without the input.
"""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.costs.model import FLOAT32_BYTES


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention with its options."""

    hidden: int
    heads: int
    groups: int
    key_dim: int
    value_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    gate: bool = False
    """Whether queries have a gate of their width (arXiv 2505.06708)."""
    sinks: bool = False
    norm: int = 0
    """Parameters of norms on queries and keys."""
    window: int | None = None
    """Keys that a query sees, its own and those before it; None: all before it."""
    chunk: int | None = None
    """Length of the chunks in which a query sees the keys before it; None: no chunks."""

    @property
    def _qkv(self) -> int:
        queries = self.heads * self.key_dim
        return queries * (2 if self.gate else 1) + self.groups * (self.key_dim + self.value_dim)

    @property
    def weights(self) -> int:
        return (self._qkv + self.heads * self.value_dim) * self.hidden

    @property
    def parameters(self) -> int:
        biases = (self._qkv if self.qkv_bias else 0) + (self.hidden if self.output_bias else 0)
        return self.weights + biases + (self.heads if self.sinks else 0) + self.norm

    @property
    def saved(self) -> int:
        heads, groups, key, value = self.heads, self.groups, self.key_dim, self.value_dim
        own_kernel = self.window is not None or self.chunk is not None or self.sinks
        total = 2 * (heads + groups) * key + groups * value + heads * value
        total += (heads + groups) * value if own_kernel else 0
        total += 3 * heads * key if self.gate else 0
        return total + (heads * key if self.norm and groups not in (1, heads) else 0)

    @property
    def rotated(self) -> int:
        """Elements per token of queries and keys, which RoPE rotates."""
        return (self.heads + self.groups) * self.key_dim

    def _seen(self, tokens: int) -> int:
        return min(tokens, self.window or tokens, self.chunk or tokens)

    def square_flops(self, seq_len: int) -> int:
        """Return FLOPs per token over the full square of a sequence."""
        return self.decode_flops(seq_len)

    def causal_flops(self, seq_len: int) -> int:
        """Return FLOPs per token over the keys in sight."""
        width, seen = self.heads * (self.key_dim + self.value_dim), self._seen(seq_len)
        if seen == seq_len or self.window is None:
            # A square is halved, whether it is the sequence's or a chunk's.
            return width * seen
        return width * (2 * seen * seq_len - seen * (seen - 1)) // seq_len

    def decode_flops(self, tokens: int) -> int:
        """Return FLOPs of the token that is the `tokens`-th of its sequence."""
        return 2 * self.heads * (self.key_dim + self.value_dim) * self._seen(tokens)

    def state_bytes(self, tokens: int, element_bytes: int) -> int:
        """Return the bytes that decoding keeps of a sequence with room for `tokens` tokens."""
        return self.groups * (self.key_dim + self.value_dim) * self._seen(tokens) * element_bytes


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1)."""

    hidden: int
    heads: int
    query_rank: int | None
    rank: int
    """Width of the latent of keys and values."""
    nope: int
    rope: int
    value_dim: int
    bias: bool = False
    """Whether the projections down and the output have biases."""

    @property
    def _kept(self) -> int:
        return self.rank + self.rope

    @property
    def weights(self) -> int:
        down = self.hidden * (self._kept + (self.query_rank or 0))
        queries = (self.query_rank or self.hidden) * (self.nope + self.rope)
        return down + self.heads * (queries + self.rank * (self.nope + self.value_dim) + self.value_dim * self.hidden)

    @property
    def parameters(self) -> int:
        biases = self._kept + (self.query_rank or 0) + self.hidden if self.bias else 0
        return self.weights + biases + self.rank + (self.query_rank or 0)

    @property
    def rotated(self) -> int:
        return (self.heads + 1) * self.rope

    @property
    def saved(self) -> int:
        latents = self._kept + self.rank + 2 * (self.query_rank or 0)
        return latents + self.heads * (4 * (self.nope + self.rope) + self.value_dim)

    def square_flops(self, seq_len: int) -> int:
        return 2 * self.causal_flops(seq_len)

    def causal_flops(self, seq_len: int) -> int:
        return self.heads * (self.nope + self.rope + self.value_dim) * seq_len

    def decode_flops(self, tokens: int) -> int:
        return 2 * self.heads * (self._kept + self.rank) * tokens

    def state_bytes(self, tokens: int, element_bytes: int) -> int:
        return self._kept * tokens * element_bytes


@dataclass(frozen=True)
class Recurrent:
    """A mixer whose state has one size, however long the sequence is."""

    weights: int
    further: int
    """Parameters beside the matrices: convolution, decays, biases, norms."""
    saved: int
    convolved: int
    """Channels of the short convolution."""
    kernel: int
    """Width of the short convolution."""
    state: int
    """Elements of the recurrent state, which is in float32."""
    update_flops: int
    """FLOPs per token of the recurrence itself, not of its chunked kernels."""

    rotated = 0

    @property
    def parameters(self) -> int:
        return self.weights + self.further

    def decode_flops(self, tokens: int) -> int:
        return self.update_flops

    # No square, and nothing that a mask hides.
    square_flops = causal_flops = decode_flops

    def state_bytes(self, tokens: int, element_bytes: int) -> int:
        # The convolution needs one input less: this is what transformers keeps.
        return FLOAT32_BYTES * self.state + self.convolved * self.kernel * element_bytes


Mixer = Attention | Latent | Recurrent


def delta_net(hidden: int, key_heads: int, heads: int, key_dim: int, value_dim: int, kernel: int) -> Recurrent:
    """Return Gated DeltaNet (arXiv 2412.06464), whose `heads` are those of values."""
    values, state = heads * value_dim, heads * key_dim * value_dim
    convolved = 2 * key_heads * key_dim + values
    return Recurrent(
        weights=hidden * (convolved + 2 * values + 2 * heads),
        further=convolved * kernel + 2 * heads + value_dim,
        saved=2 * convolved + 3 * values + 2 * heads,
        convolved=convolved,
        kernel=kernel,
        state=state,
        update_flops=6 * state,
    )


def kimi_delta(hidden: int, heads: int, dim: int, kernel: int) -> Recurrent:
    """Return Kimi Delta Attention (arXiv 2510.26692), with a decay for each dimension of a key."""
    width, state = heads * dim, heads * dim**2
    return Recurrent(
        weights=4 * hidden * width + 2 * (hidden * dim + dim * width) + hidden * heads,
        further=3 * width * kernel + width + heads + dim,
        saved=11 * width + 2 * dim + heads,
        convolved=3 * width,
        kernel=kernel,
        state=state,
        update_flops=6 * state,
    )


def mamba2(
    hidden: int,
    inner: int,
    heads: int,
    groups: int,
    states: int,
    kernel: int,
    biases: tuple[bool, bool, bool],
    norm: bool,
) -> Recurrent:
    """Return Mamba-2 (arXiv 2405.21060); `biases`: of the projection in, the convolution and the projection out."""
    convolved = inner + 2 * groups * states
    projected = inner + convolved + heads
    further = 3 * heads + norm * inner + convolved * kernel
    return Recurrent(
        weights=hidden * (projected + inner),
        further=further + biases[0] * projected + biases[1] * convolved + biases[2] * hidden,
        saved=projected + convolved + 2 * inner,
        convolved=convolved,
        kernel=kernel,
        state=inner * states,
        update_flops=4 * inner * states,
    )


def mamba(
    hidden: int, inner: int, states: int, rank: int, kernel: int, bias: bool, convolution_bias: bool
) -> Recurrent:
    """Return Mamba (arXiv 2312.00752), whose time steps come from a projection of this rank."""
    return Recurrent(
        weights=inner * (3 * hidden + 2 * rank + 2 * states),
        further=inner * (kernel + convolution_bias + states + 2) + bias * (2 * inner + hidden),
        saved=6 * inner + rank + 2 * states,
        convolved=inner,
        kernel=kernel,
        state=inner * states,
        update_flops=5 * inner * states,
    )


def short_convolution(hidden: int, kernel: int, bias: bool) -> Recurrent:
    """Return LFM2's gated short convolution, whose state is the last inputs."""
    return Recurrent(4 * hidden**2, hidden * (kernel + 5 * bias), 6 * hidden, hidden, kernel, 0, 0)
