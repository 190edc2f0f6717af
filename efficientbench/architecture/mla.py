"""Declaration of multi-head latent attention: keys, formulas, and what it supports."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from efficientbench.architecture.variant import AttentionConfig, AttentionCosts, AttentionVariant, Decoder, Stack
from efficientbench.basics.part import PositiveInt


class MLAConfig(AttentionConfig):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Widths that are not set follow the backbone's, in the proportions of DeepSeek-V2-Lite (`proportions`).
    """

    rotated_key: ClassVar[str] = "attention.qk_rope_head_dim"

    kind: Literal["mla"] = Field(default="mla", description="attention variant")
    q_lora_rank: PositiveInt | None = Field(
        default=None, description="width of the queries' latent; unset: queries have none"
    )
    kv_lora_rank: PositiveInt = Field(
        description="width of the latent that keys and values share; hidden_size / 4 unless set"
    )
    qk_nope_head_dim: PositiveInt = Field(
        description="width of the part of a query or key head without position; head_dim unless set"
    )
    qk_rope_head_dim: PositiveInt = Field(
        description="width of the part of a query head that RoPE rotates, and of the rotated key that all heads share; "
        "head_dim / 2 unless set"
    )
    v_head_dim: PositiveInt = Field(description="width of a value head; head_dim unless set")

    @classmethod
    def proportions(cls, hidden_size: int, head_dim: int) -> dict[str, int]:
        """Return MLA's default widths on a backbone of this hidden size and head dimension."""
        return {
            "kv_lora_rank": hidden_size // 4,
            "qk_nope_head_dim": head_dim,
            "qk_rope_head_dim": head_dim // 2,
            "v_head_dim": head_dim,
        }

    @property
    def key_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def rotated_dim(self, head_dim: int) -> int:
        return self.qk_rope_head_dim


def mla_keys(model: Decoder) -> MLAConfig:
    """Return the keys of a view whose layers are MLA."""
    assert isinstance(model.attention, MLAConfig)
    return model.attention


def _cached(model: Decoder) -> int:
    """Count the latent and the key that all heads share."""
    return mla_keys(model).kv_lora_rank + mla_keys(model).qk_rope_head_dim


def _down(model: Decoder) -> int:
    """Count the weights of the projections to the latents and to the shared key."""
    return model.hidden_size * (_cached(model) + (mla_keys(model).q_lora_rank or 0))


def _latent_norms(model: Decoder) -> int:
    return mla_keys(model).kv_lora_rank + (mla_keys(model).q_lora_rank or 0) if model.norm_weights else 0


def _projections(model: Decoder) -> int:
    """Count the weights of all projections: to latents, from latents to heads, and from heads to the output."""
    mla = mla_keys(model)
    query = (mla.q_lora_rank or model.hidden_size) * mla.key_dim
    key_value = mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
    return _down(model) + model.heads * (query + key_value + mla.v_head_dim * model.hidden_size)


def _saved(model: Decoder, tp: int) -> int:
    """Count latents before and after their norm, and the elements that the heads keep.

    A head keeps rotated queries, keys, values and output as wide as keys, and the output in its own width. The CPU's
    kernel needs values and output that wide; others keep a little less.
    """
    latents = _cached(model) + mla_keys(model).kv_lora_rank + 2 * (mla_keys(model).q_lora_rank or 0)
    return latents + model.heads // tp * (4 * mla_keys(model).key_dim + mla_keys(model).v_head_dim)


def _recomputed(model: Decoder, tp: int) -> int:
    """Count the elements that the heads keep beside the projected queries, keys and values, and the output."""
    mla = mla_keys(model)
    return model.heads // tp * (3 * mla.key_dim - mla.qk_nope_head_dim - mla.v_head_dim)


def _products(model: Decoder, seq_len: int) -> tuple[int, int]:
    """Count forward FLOPs per token over the keys in sight: in the scores, and in their product with the values."""
    return model.heads * mla_keys(model).key_dim * seq_len, model.heads * mla_keys(model).v_head_dim * seq_len


def _matrices(model: Decoder) -> dict[str, Stack]:
    """Return the projections; those to the latent and to the shared key are one weight, as are K's and V's heads."""
    mla, hidden, heads = mla_keys(model), model.hidden_size, model.heads
    query = {"linear_q_proj.weight": Stack(hidden, (heads * mla.key_dim,))}
    if mla.q_lora_rank is not None:
        query = {
            "linear_q_down_proj.weight": Stack(hidden, (mla.q_lora_rank,), split=False),
            "linear_q_up_proj.weight": Stack(mla.q_lora_rank, (heads * mla.key_dim,)),
        }
    return {
        **query,
        "linear_kv_down_proj.weight": Stack(hidden, (mla.kv_lora_rank, mla.qk_rope_head_dim), split=False),
        "linear_kv_up_proj.weight": Stack(mla.kv_lora_rank, (mla.qk_nope_head_dim, mla.v_head_dim), repeats=heads),
        "linear_proj.weight": Stack(heads * mla.v_head_dim, (hidden,)),
    }


VARIANT = AttentionVariant(
    config=MLAConfig,
    layer="efficientbench.model.attention.mla:spec",
    costs=AttentionCosts(
        parameters=lambda model: _projections(model) + _latent_norms(model),
        projection_flops=lambda model: 2 * _projections(model),
        score_flops=lambda model, seq_len: 2 * sum(_products(model, seq_len)),
        causal_score_flops=lambda model, seq_len: sum(_products(model, seq_len)),
        products=_products,
        keys_read_per_query=lambda model, seq_len: (seq_len + 1) / 2,
        cached=_cached,
        # Every rank holds the latents in full.
        state_bytes=lambda model, tokens, tp, element_bytes: _cached(model) * tokens * element_bytes,
        # All heads attend to the latents themselves: to latent and shared key for the scores, to the latent as value.
        # The projections that queries and outputs then pass are counted already: they are those of keys and values.
        decode_flops=lambda model, tokens: 2 * model.heads * (_cached(model) + mla_keys(model).kv_lora_rank) * tokens,
        saved=_saved,
        recomputed=_recomputed,
        gathered=lambda model, tp: model.heads // tp * 2 * mla_keys(model).key_dim,
        exchanged=lambda model, tp: model.heads // tp * (mla_keys(model).key_dim + mla_keys(model).v_head_dim),
        column_inputs=lambda model: (mla_keys(model).q_lora_rank or model.hidden_size, mla_keys(model).kv_lora_rank),
        replicated_parameters=lambda model: _down(model) + _latent_norms(model),
        read_by_all_heads=lambda model: mla_keys(model).qk_rope_head_dim,
    ),
    # Without positions the shared key is one as others are, as in Kimi Linear (arXiv 2510.26692).
    places=frozenset({"nothing", "queries and keys"}),
    other_positions="position.kind: MLA has a part of its keys for RoPE and takes no other encoding, not {position!r}",
    plain_scores=lambda model: (mla_keys(model).key_dim, mla_keys(model).v_head_dim),
    matrices=_matrices,
    # Decoding multiplies its halves into queries and outputs.
    read_whole=("linear_kv_up_proj.weight",),
    cache_choices=lambda model: ("kv_lora_rank", range(8, model.hidden_size + 1, 8)),
    tensor_parallel=lambda model, tp: [],
    context_parallel=True,
    within_documents=(),
    selective_recomputation=True,
    exporter="efficientbench.export.mla:EXPORTER",
    exportable="MLA without experts, or with experts scored by sigmoids",
    further={"latent queries": ("model.attention.q_lora_rank=20",)},
)
