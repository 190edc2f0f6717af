"""Declarations: what the rest of the project needs to know of an attention variant or a positional encoding.

A declaration imports neither torch nor Megatron: it names its code by dotted strings like `package.module:function`,
which only a rank imports. A field that it leaves out means "not supported", with the reason, or a figure without a
formula.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

from pydantic import Field

from efficientbench.architecture.backbone import Backbone
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.part import GrownPart, Part

Place = Literal["nothing", "embedding", "queries and keys", "scores"]
"""The place in the model that a positional encoding changes."""


Figure = TypeVar("Figure")


class UndeclaredError(ConfigError):
    """A figure for which a variant's declaration has no formula."""


class AttentionConfig(GrownPart):
    """The keys of an attention variant; each variant has a subclass."""

    rotated_key: ClassVar[str] = "head_dim"
    """The key that sets `rotated_dim`, for messages."""

    kind: str = Field(description="attention variant")

    @classmethod
    def proportions(cls, hidden_size: int, head_dim: int) -> dict[str, int]:
        """Return the widths that follow a backbone of this hidden size and head dimension, unless they are set."""
        return {}

    def key_value_heads(self, heads: int) -> int:
        """Return the number of key and value heads in the kernel, for a model with `heads` query heads."""
        return heads

    def rotated_dim(self, head_dim: int) -> int:
        """Return the number of dimensions of a query or key head that RoPE may rotate, for a model's head dimension."""
        return head_dim

    @property
    def engine_qkv_bias(self) -> bool:
        """Whether Megatron's own attention layer, where the variant uses it, has a bias on Q, K and V."""
        return False

    @property
    def engine_output_gate(self) -> bool:
        """Whether Megatron's own attention layer, where the variant uses it, has an output gate."""
        return False


class PositionConfig(GrownPart):
    """The keys of a positional encoding; each encoding has a subclass."""

    kind: str = Field(description="positional encoding")

    def rotated(self, width: int) -> int:
        """Return how many of so many dimensions of a query or key head it rotates, where it rotates them."""
        return width

    @property
    def longest(self) -> int | None:
        """The longest sequence with positions, in tokens; None: there is no limit."""
        return None

    @property
    def rope_base(self) -> float | None:
        """The base of the frequencies of RoPE as transformers computes it; None for another encoding."""
        return None

    @property
    def rope_scaling(self) -> Part | None:
        """Llama 3.1's scaling of these frequencies; None without it."""
        return None


class Decoder(Backbone):
    """A model as the formulas of its variants see it: the backbone, with the keys of attention and position.

    A model whose layers are of several kinds has a `pattern`, and formulas see a view of it for each kind.
    """

    attention: AttentionConfig
    position: PositionConfig
    first: tuple[str, ...] | None = None
    pattern: tuple[str, ...] | None = None

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads in the attention kernel."""
        return self.attention.key_value_heads(self.heads)

    @property
    def rotated_dim(self) -> int:
        """Dimensions of a query or key head that RoPE rotates."""
        return self.position.rotated(self.attention.rotated_dim(self.head_dim))


def _undeclared(section: str, figure: str) -> Callable[..., Any]:
    """Return the default of a formula that a declaration leaves out: it raises UndeclaredError."""

    def refuse(model: Decoder, *sizes: int) -> NoReturn:
        kind = getattr(model, section).kind
        raise UndeclaredError(f"model.{section}.kind={kind} declares no formula for {figure}")

    return refuse


@dataclass(frozen=True)
class Stack:
    """Matrices of one input width that lie in one weight [rows, inputs]: their rows in turn, `repeats` times over."""

    inputs: int
    heights: tuple[int, ...]
    """Rows of each matrix in one repetition."""
    repeats: int = 1
    """Repetitions of the matrices' rows, such as the groups of a fused projection."""
    copies: int = 1
    """Number of such weights in a layer, such as one for each expert."""
    split: bool = True
    """Whether tensor-parallel ranks split the weight; else every rank holds it in full."""

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of each matrix of one weight."""
        return tuple((height * self.repeats, self.inputs) for height in self.heights)

    @property
    def parameters(self) -> int:
        """Parameters of all copies."""
        return self.copies * sum(rows * columns for rows, columns in self.shapes)


@dataclass(frozen=True)
class AttentionCosts:
    """Formulas for one attention layer with its projections. They count elements, not bytes."""

    parameters: Callable[[Decoder], int] = _undeclared("attention", "its parameters")
    """Parameters of the layer."""
    projection_flops: Callable[[Decoder], int] = _undeclared("attention", "FLOPs of its projections")
    """Forward FLOPs per token in the projections."""
    score_flops: Callable[[Decoder, int], int] = _undeclared("attention", "FLOPs of its scores")
    """(model, sequence length) → forward FLOPs per token in scores and their product with the values, full square."""
    causal_score_flops: Callable[[Decoder, int], int] = _undeclared("attention", "FLOPs of its scores")
    """`score_flops` over the keys that a query can see."""
    products: Callable[[Decoder, int], tuple[int, int]] = _undeclared("attention", "FLOPs of its kernels")
    """(model, sequence length) → forward FLOPs per token over the keys in sight: in the scores, and in their product
    with the values."""
    computed_products: Callable[[Decoder, int], tuple[int, int]] | None = None
    """`products` over all keys that kernels read, masked ones included; None: kernels read no masked keys."""
    keys_read_per_query: Callable[[Decoder, int], float] = _undeclared("attention", "the keys that a query reads")
    """(model, sequence length) → mean number of keys that a query reads."""
    cached: Callable[[Decoder], int] = _undeclared("attention", "its cache")
    """Elements per token that decoding keeps in its cache."""
    state_bytes: Callable[[Decoder, int, int, int], int] = _undeclared(
        "attention", "the state that decoding keeps (AttentionCosts.state_bytes), and so cannot generate"
    )
    """(model, tokens, t, bytes of an element) → bytes of the State (model/cache.py) that the layer, a Stateful, keeps
    on one rank for a sequence with room for `tokens` tokens."""
    decode_reads: Callable[[Decoder, int], int] | None = None
    """(model, tokens) → elements of the State that the last of `tokens` queries reads; None: the elements that `cached`
    counts, for all tokens."""
    decode_bytes: Callable[[Decoder, int, int], int] | None = None
    """(model, tokens, bytes of an element) → bytes of the State that the last of `tokens` queries reads, and writes
    where it changes all of them; None: those of `decode_reads`."""
    decode_flops: Callable[[Decoder, int], int] = _undeclared("attention", "FLOPs of decoding")
    """(model, tokens) → FLOPs, in scores and their product with the values, of the token that is the `tokens`-th of its
    sequence, as decoding computes them."""
    saved: Callable[[Decoder, int], int] = _undeclared("attention", "its activations")
    """(model, t) → elements per token that one rank keeps from forward to backward, without the layer's input."""
    recomputed: Callable[[Decoder, int], int] = _undeclared("attention", "what recomputation saves")
    """(model, t) → elements of `saved` that selective recomputation computes again instead."""
    gathered: Callable[[Decoder, int], int] = _undeclared("attention", "keys and values of a whole sequence")
    """(model, t) → elements of `saved` in keys and values: context-parallel ranks keep them for the full sequence."""
    exchanged: Callable[[Decoder, int], int] = _undeclared("attention", "what context-parallel ranks send")
    """(model, t) → elements per token of the keys and values that context-parallel ranks send each other."""
    column_inputs: Callable[[Decoder], tuple[int, ...]] = _undeclared("attention", "its projections' inputs")
    """Input width of each column-parallel projection, which tensor-parallel ranks split by its outputs."""
    replicated_parameters: Callable[[Decoder], int] = _undeclared("attention", "the parameters that ranks share")
    """Parameters that every tensor-parallel rank holds in full."""
    summed_by_micro_batch: Callable[[Decoder], int] = lambda model: 0
    """Parameters among `replicated_parameters` whose gradients tensor-parallel ranks sum in every micro-batch; those of
    the others they sum once in a step, and only with sequence parallelism."""
    read_by_all_heads: Callable[[Decoder], int] = lambda model: 0
    """Width of the input that all heads read: tensor-parallel ranks gather its parts of the sequence, and sum its
    gradient."""
    gathered_heads: Callable[[Decoder, int], int] = lambda model, tp: 0
    """(model, t) → width of the queries, keys and values that tensor-parallel ranks gather to take their own."""


@dataclass(frozen=True)
class AttentionVariant:
    """The declaration of an attention variant."""

    config: type[AttentionConfig]
    layer: str
    """Dotted name of (model, position) → the layer's ModuleSpec, projections included."""
    costs: AttentionCosts = AttentionCosts()
    places: frozenset[Place] = frozenset({"nothing", "embedding"})
    """Places that its positional encoding may change. The layer itself must apply encodings of queries, keys and
    scores."""
    other_positions: str = (
        "position.kind: attention {attention!r} does not declare that it takes {position!r} positions: set "
        "model.position.kind to {taken}"
    )
    """Error message for an encoding of another place."""
    qk_norm: bool = False
    """Whether the layer has norms on the heads' queries and keys where `model.qk_norm` asks for them."""
    plain_scores: Callable[[Decoder], tuple[int, int] | None] | None = None
    """Widths of a key and a value head, where the configured kernel computes the scores as plain causal attention;
    None, or a function that returns None: the layer computes its scores by itself."""
    kernels: str | None = None
    """Dotted name of the OwnKernels (model/kernels/own_kernels.py) of a layer that computes its scores by itself."""
    matrices: Callable[[Decoder], dict[str, Stack]] | None = None
    """The matrices of one layer by their weight's name in the layer; None: `training.optimizer=muon` is refused."""
    read_whole: tuple[str, ...] = ()
    """The names in `matrices` that are never quantized: decoding does more with them than multiply their inputs."""
    may_differ: tuple[str, str] | None = None
    """A part whose Triton kernel may compute other bits in the next run, though torch is deterministic, and why."""
    cache_choices: Callable[[Decoder], tuple[str, Sequence[int]]] | None = None
    """The key of its section by which its cache grows, and the values that it may have, from the least; None:
    `match=cache` is refused."""
    tensor_parallel: Callable[[Decoder, int], list[str]] | None = None
    """(model, t) → why t tensor-parallel ranks cannot share the layer, beside the number of heads; None: no two can."""
    context_parallel: bool | Callable[[Decoder], bool] = False
    """Whether context-parallel ranks can share a sequence; a function where it depends on the model's keys."""
    within_documents: tuple[str, ...] | None = None
    """Device types on which the layer's `forward` takes `packed_seq_params`, the Documents (model/documents.py) within
    which its tokens attend; empty: all; None: none."""
    selective_recomputation: bool = False
    """Whether the layer recomputes attention between its projections for `training.recompute=selective`."""
    hidden_at: Callable[[Decoder, int], str | None] = lambda model, seq_len: None
    """(model, sequence length) → why sequences of this length cannot show what the variant does; None: they can."""
    profiled_as: tuple[str, ...] = ()
    """Parts of the names of its autograd functions and `record_function` ranges: a profile counts them as attention."""
    exporter: str | None = None
    """Dotted name of its Exporter (export/architectures.py); None: see `not_exported`."""
    exportable: str | None = None
    """Which models of the variant have a class in transformers."""
    not_exported: str = "its declaration names no class of transformers"
    """Why the variant has no exporter."""
    tiny: tuple[str, ...] = ()
    """Overrides, as `key=value`, with which the variant keeps its structure in a tiny model (doctor/variant/cases.py),
    whose sequences may have 16 tokens unless `training.seq_len` is among them."""
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further tiny models that checks and tests need, by what each has: its overrides beside `tiny`."""
    ratios: Callable[[Decoder], tuple[float, ...]] = lambda model: ()
    """The ratios of its keys that define the variant: a smoke run, whose keys may be smaller, keeps them."""


@dataclass(frozen=True)
class PositionCosts:
    """Formulas for one positional encoding."""

    parameters: Callable[[Decoder], int] = _undeclared("position", "its parameters")
    """Parameters of the whole model."""
    rank_parameters: Callable[[Decoder, int, bool], int] = _undeclared("position", "its parameters on a rank")
    """(model, tensor-parallel ranks, whether the stage is the first) → parameters on one rank."""


WITHOUT_PARAMETERS = PositionCosts(parameters=lambda model: 0, rank_parameters=lambda model, tp, first: 0)


@dataclass(frozen=True)
class PositionVariant:
    """The declaration of a positional encoding."""

    config: type[PositionConfig]
    layer: str
    """Dotted name of (model, engine's configuration, whether the stage is the first) → model.position.Position."""
    place: Place
    """The place that it changes. A table for the embedding is on the first stage, a table for scores on every stage."""
    costs: PositionCosts = PositionCosts()
    kernels: str | None = None
    """Dotted name of the OwnKernels (model/kernels/own_kernels.py) with which it changes queries and keys."""
    context_parallel: bool = False
    """Whether context-parallel ranks can share a sequence."""
    decodes: bool = False
    """Whether each row of a batch can have positions of its own, as in decoding: `embed` then gets positions [S, B],
    and where queries and keys are encoded, `at` returns an encoding of such positions."""
    table_divisor: float = 1.0
    """Divisor of the initial standard deviation of its table, relative to other weights."""
    not_exported: str = "its declaration names no class of transformers"
    """Why a model with this encoding has no class in transformers, unless the encoding is RoPE or changes nothing."""
    tiny: tuple[str, ...] = ()
    """Overrides of the tiny model, as in AttentionVariant."""
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further tiny models, as in AttentionVariant."""


def group_choices(model: Decoder) -> tuple[str, Sequence[int]]:
    """Return the key of the key/value heads, and the numbers of them that share the query heads evenly."""
    return "query_groups", [groups for groups in range(1, model.heads + 1) if model.heads % groups == 0]


def known(formula: Callable[[], Figure]) -> Figure | None:
    """Return a figure by its formula; None where a variant's declaration lacks what the formula needs."""
    try:
        return formula()
    except UndeclaredError:
        return None


def shown(formula: Callable[[], str]) -> str:
    """Return a formatted figure; n/a with the reason where a variant's declaration lacks what its formula needs."""
    try:
        return formula()
    except UndeclaredError as error:
        return f"n/a: {error}"


def missing(formula: Callable[[], object]) -> str | None:
    """Return why a figure is unknown: the formula that a variant's declaration lacks; None if it is known."""
    try:
        formula()
    except UndeclaredError as error:
        return str(error)
    return None


def imported(dotted: str) -> Any:
    """Import the object that a declaration names: `package.module:attribute`, where the attribute may be dotted too."""
    module, _, attribute = dotted.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))
