"""Positional encodings: what each does to embeddings, to queries and keys, and to scores.

The declarations in architecture/positions.py name each class's method `of`, which builds the encoding of a stage.
S = sequence, B = micro-batch, H = hidden size, D = head dimension.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.positions import LearnableAbsoluteConfig, RelativeConfig, RopeConfig, RopeScaling
from efficientbench.architecture.variant import imported
from efficientbench.model import context_parallel
from efficientbench.model.engine_config import EngineConfig
from efficientbench.model.kernels.rope import rotate

WAVELENGTH = 10_000.0
"""The largest wavelength of the sinusoids, in units of 2π; the smallest is 1."""
MOST_LENGTHS = 64
"""Sequence lengths whose angles are kept at a time; documents have many."""
POSITION_TABLE = "is_position_table"
"""The attribute that marks a trained table of positions, which has no weight decay."""


class Position:
    """No positional encoding (NoPE, arXiv 2305.19466), and the base class of all encodings.

    One object serves all layers of a kind in a pipeline stage. A subclass overrides what it changes: the
    embedding (`embed`), queries and keys (`rotate`, `at`), or the scores (`bias`).
    """

    table: torch.nn.Parameter | None = None
    """The encoding's trained parameter on this stage. The model alone registers it, so that it has one name."""
    number: int = 0
    """The number of the encoding among those of a stage's kinds of layers, by which a chunk keeps its angles."""

    @classmethod
    def of(cls, model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
        """Build the encoding of one pipeline stage."""
        return cls()

    def embed(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add the encoding of positions to embedded tokens [S, B, H] → [S, B, H]. Called on the first stage only.

        `positions`: [S], or [S, B] where decoding has rows of different lengths (see `PositionVariant.decodes`).
        At initialization the added term has 1 / √2 of the tokens' standard deviation, under every such encoding.
        """
        return embedded

    def rotate(self, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        """Encode queries or keys [S, B, heads, D] of this context-parallel rank → the same shape.

        `stride`: x has every `stride`-th token of the sequence; above 1 only without context parallelism.
        """
        return x

    def at(self, positions: torch.Tensor) -> Position:
        """Return the encoding that rotates queries or keys [S, B, heads, D] at positions [S, B]."""
        return self

    def bias(self, sequence: int) -> torch.Tensor | None:
        """Return the bias on scores by distance, [heads of this tensor-parallel rank, S]; None for no bias.

        Entry d belongs to a query and the key d tokens before it.
        """
        return None


class Rope(Position):
    """Rotary position embedding (arXiv 2104.09864, equation 34): rotates by angles that grow with position."""

    def __init__(self, base: float, dim: int, scaling: RopeScaling | None = None, fuse: bool = False) -> None:
        """Take the frequencies' `base` and `scaling`, and `dim`, how many of a head's last dimensions to rotate.

        `fuse`: use a compiled kernel.
        """
        self.base = base
        self.scaling = scaling
        self.dim = dim
        self.fuse = fuse
        self._angles: dict[tuple[int, int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def of(cls, model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
        assert isinstance(model.position, RopeConfig)
        return cls(model.position.base, model.rotated_dim, model.position.scaling, config.fuse)

    def rotate(self, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        cos, sin = self.angles(x, stride)
        return rotate(x, cos, sin, self.fuse)

    def angles(self, like: torch.Tensor, stride: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [S, 1, 1, dim / 2] for the sequence length, dtype and device of `like` [S, ...]."""
        key = (like.shape[0], stride, like.dtype)
        if key not in self._angles:
            if len(self._angles) >= MOST_LENGTHS:
                self._angles.clear()
            positions = stride * context_parallel.positions(like.shape[0], like.device)
            angles = self._of(positions[:, None])
            self._angles[key] = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
        return self._angles[key]

    def at(self, positions: torch.Tensor) -> Position:
        angles = self._of(positions)
        return Rotation(angles.cos(), angles.sin(), self.fuse)

    def _of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the angles [S, B or 1, 1, dim / 2] of positions [S, B or 1]."""
        # In float32 for every dtype, because bf16 cannot tell apart positions above 256.
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device=positions.device) / self.dim
        frequencies = self.base**-exponents
        if self.scaling is not None:
            low, high = self.scaling.low_freq_factor, self.scaling.high_freq_factor
            # 1 where so many wavelengths fit in the original sequence, `high`, that the frequency stays.
            kept = ((self.scaling.original_seq_len / (2 * math.pi) * frequencies - low) / (high - low)).clamp(0, 1)
            frequencies = frequencies * (kept + (1 - kept) / self.scaling.factor)
        return positions.float()[:, :, None, None] * frequencies


class Rotation(Position):
    """Rotary position embedding by precomputed angles."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, fuse: bool) -> None:
        """Take cos and sin [S, B, 1, dim / 2] in float32; `fuse`: use a compiled kernel."""
        self.cos, self.sin, self.fuse = cos, sin, fuse

    def rotate(self, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        return rotate(x, self.cos.to(x.dtype), self.sin.to(x.dtype), self.fuse)


class Absolute(Position):
    """Fixed sinusoids (arXiv 1706.03762, section 3.5), added to the embedding.

    Position p has sin(p / WAVELENGTH^(2k / H)) in dimension 2k and the cosine in 2k + 1, times the standard deviation
    of the tokens' initial embedding. That is the paper's proportion: there both are 1, after a factor √H on the tokens.
    """

    def __init__(self, init_std: float) -> None:
        self.amplitude = init_std

    @classmethod
    def of(cls, model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
        return cls(model.init_std)

    def embed(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        width = embedded.shape[-1]
        exponents = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
        angles = _by_row(positions).float()[..., None] * WAVELENGTH**-exponents
        sinusoids = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(2)[..., :width]
        return embedded + (self.amplitude * sinusoids).to(embedded.dtype)


class LearnableAbsolute(Position):
    """A trained row for each position, as in GPT-2, added to the embedding; only the first stage has the table."""

    table: torch.nn.Parameter

    def __init__(self, rows: int, config: EngineConfig) -> None:
        """Make a table [rows, H], replicated over tensor-parallel ranks; `rows`: the longest sequence in tokens."""
        self.table = position_table(rows, config.hidden_size, config)
        # Each rank adds only the rows of its part of the sequence; this mark lets Megatron sum the gradients.
        self.table.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    @classmethod
    def of(cls, model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
        assert isinstance(model.position, LearnableAbsoluteConfig)
        return cls(model.position.max_seq_len, config) if first_stage else Position()

    def embed(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return embedded + F.embedding(_by_row(positions), self.table)


def _by_row(positions: torch.Tensor) -> torch.Tensor:
    """Return positions [S, B] unchanged, and positions [S], which all rows share, as [S, 1]."""
    return positions if positions.dim() == 2 else positions[:, None]


class Relative(Position):
    """T5's relative bias (arXiv 1910.10683, section 2.1), causal: a trained number for each head and bucket."""

    table: torch.nn.Parameter

    def __init__(self, relative: RelativeConfig, config: EngineConfig, first_stage: bool) -> None:
        """Make one table [buckets, heads] for all layers.

        Every pipeline stage has a copy; a tensor-parallel rank has the columns of its heads.
        """
        self.buckets, self.max_distance = relative.buckets, relative.max_distance
        heads = config.num_attention_heads // parallel_state.get_tensor_model_parallel_world_size()
        self.table = position_table(relative.buckets, heads, config)
        marks: dict[str, object] = {
            # Tensor parallelism splits the columns.
            "tensor_model_parallel": True,
            "partition_dim": 1,
            "partition_stride": 1,
            # The stages' copies start equal and stay equal by the sum of their gradients. Megatron needs three marks
            # for that: one for the sum over stages (which `has_cond_embedder` turns on), …
            "pipeline_parallel": True,
            # … one for a separate bucket, which the distributed optimizer splits alike on every stage, …
            "shared_embedding": True,
            # … and one by which a single copy counts in the gradient norm.
            "shared": not first_stage,
        }
        for name, value in marks.items():
            setattr(self.table, name, value)
        config.has_cond_embedder = True  # type: ignore[attr-defined]

    @classmethod
    def of(cls, model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
        assert isinstance(model.position, RelativeConfig)
        return cls(model.position, config, first_stage)

    def bias(self, sequence: int) -> torch.Tensor:
        distances = torch.arange(sequence, device=self.table.device)
        return F.embedding(bucket(distances, self.buckets, self.max_distance), self.table).t()


def bucket(distances: torch.Tensor, buckets: int, max_distance: int) -> torch.Tensor:
    """Return the bucket [S] of each distance [S], counted from 0.

    Each bucket of the first half has one distance; the others grow wider up to `max_distance`. All larger distances
    share the last bucket.
    """
    exact = buckets // 2
    ratio = (distances.clamp(min=exact).float() / exact).log() / math.log(max_distance / exact)
    wide = exact + (ratio * (buckets - exact)).long()
    return torch.where(distances < exact, distances, wide.clamp(max=buckets - 1))


class Alibi(Position):
    """ALiBi (arXiv 2108.12409): lowers each score by the distance times the head's slope. Nothing is trained."""

    def __init__(self, config: EngineConfig) -> None:
        every = slopes(config.num_attention_heads)
        heads = len(every) // parallel_state.get_tensor_model_parallel_world_size()
        first = parallel_state.get_tensor_model_parallel_rank() * heads
        self.slopes = torch.tensor(every[first : first + heads], device=torch.get_default_device())

    @classmethod
    def of(cls, model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
        return cls(config)

    def bias(self, sequence: int) -> torch.Tensor:
        return -torch.outer(self.slopes, torch.arange(sequence, dtype=torch.float32, device=self.slopes.device))


def slopes(heads: int) -> list[float]:
    """Return ALiBi's slope of each head: a geometric sequence that starts at its own ratio, 2^(-8 / heads).

    Where the number of heads is no power of two, the sequence is that of the next smaller power, followed by every
    other slope of the next larger one, as in the authors' code.
    """
    power = 1 << (heads.bit_length() - 1)
    between = [2 ** (-8 * k / (2 * power)) for k in range(1, 2 * power, 2)]
    return [2 ** (-8 * k / power) for k in range(1, power + 1)] + between[: heads - power]


def build_position(model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
    """Build the positional encoding of one pipeline stage that the configuration names."""
    return imported(model.position_variant.layer)(model, config, first_stage)


def position_table(rows: int, columns: int, config: TransformerConfig) -> torch.nn.Parameter:
    """Make an uninitialized table of positions, with the mark that `update.parameter_roles.decays` reads."""
    device = torch.get_default_device()
    table = torch.nn.Parameter(torch.empty(rows, columns, dtype=config.params_dtype, device=device))
    setattr(table, POSITION_TABLE, True)
    return table
