"""An attention variant to start from: gated retention, a recurrent layer whose state has the same size for any length.

docs/variants.md says what the layer gets, its shapes, and what each part of the project asks of it.
S = sequence, B = micro-batch, h = heads of this tensor-parallel rank, D = head dimension.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from efficientbench.architecture.variant import AttentionConfig, AttentionCosts, AttentionVariant, Stack

# Neither torch nor Megatron is imported at the top: `plan` reads this file without them.
if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position

CHUNK = 64
"""Tokens that are computed together: products in place of a loop over tokens."""


class Config(AttentionConfig):
    """The keys under model.attention. A field here is a further key, and an option of every command."""

    kind: Any = Field(description="attention variant")
    sharpness: float = Field(default=1.0, gt=0, description="multiplies what decides how fast a head forgets")


def retain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute S tokens of state_t = exp(decay_t) state_{t−1} + key_t value_tᵀ, out_t = state_tᵀ query_t.

    Query, key and value [B, h, S, D]; decay [B, h, S], at most 0; state [B, h, D, D] before them, [key, value].
    Returns the outputs [B, h, S, D], and the state behind the last token.
    """
    import torch

    total = decay.cumsum(dim=-1)
    later = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).triu(1)
    # Masked before the exponential, which would overflow for later tokens.
    faded = (total[..., :, None] - total[..., None, :]).masked_fill(later, -torch.inf).exp()
    out = (query @ key.transpose(-1, -2) * faded) @ value + (query * total.exp()[..., None]) @ state
    last = total[..., -1:]
    learned = (key * (last - total).exp()[..., None]).transpose(-1, -2) @ value
    return out, state * last.exp()[..., None] + learned


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of the whole layer, projections included. Its order is all that it knows of positions."""
    from megatron.core.transformer.spec_utils import ModuleSpec

    return ModuleSpec(module=_module(), params={"model": model})


@cache
def _module() -> type:
    """Return the class of the layer, which only a rank needs, as it needs torch."""
    import torch
    from megatron.core.transformer import MegatronModule

    from efficientbench.model.cache import State, Stateful
    from efficientbench.model.layers import column_parallel, row_parallel

    class Recurrent(State):
        """What decoding keeps, however many tokens there were: [B, h, D, D] in float32."""

        def __init__(self, sums: torch.Tensor) -> None:
            self.sums = sums

    class Layer(Stateful, MegatronModule):
        """Hidden states [S, B, H] → [S, B, H]."""

        def __init__(self, config: Any, layer_number: int, pg_collection: Any, *, model: Decoder) -> None:
            super().__init__(config)
            assert isinstance(model.attention, Config)
            self.heads, self.width = model.heads // pg_collection.tp.size(), model.head_dim
            self.sharpness = model.attention.sharpness
            hidden, outputs = config.hidden_size, model.heads * model.head_dim
            # For each head its query, key, value and decay, so that each rank has whole heads.
            rows = model.heads * (3 * model.head_dim + 1)
            self.linear_in = column_parallel(config, hidden, rows, pg_collection.tp)
            self.linear_proj = row_parallel(config, outputs, hidden, pg_collection.tp)

        def forward(
            self,
            hidden_states: torch.Tensor,
            attention_mask: None = None,
            packed_seq_params: None = None,
            **unused: Any,
        ) -> Any:
            """Return the output and its bias, None. Whole sequences begin with an empty state."""
            mixed, _ = self.linear_in(hidden_states)
            # [S, B, h · (3 D + 1)] → [B, h, S, 3 D + 1]; sums of many tokens are float32 or wider.
            by_head = mixed.reshape(*mixed.shape[:2], self.heads, -1).permute(1, 2, 0, 3)
            wide = by_head.to(torch.promote_types(by_head.dtype, torch.float32))
            query, key, value, decay = wide.split([self.width, self.width, self.width, 1], dim=-1)
            decay = torch.nn.functional.logsigmoid(self.sharpness * decay[..., 0])
            if self.cache is not None:
                # Tokens that fill a row leave its state as it is.
                real = torch.arange(len(mixed), device=mixed.device) < self.cache.chunk.counts[:, None]
                key, decay = key * real[:, None, :, None], decay * real[:, None]
            out, state = [], self._begin(wide)
            parts = (each.split(CHUNK, dim=2) for each in (query * self.width**-0.5, key, value, decay))
            for queries, keys, values, decays in zip(*parts, strict=True):
                found, state = retain(queries, keys, values, decays, state)
                out.append(found)
            if self.cache is not None:
                self._kept().copy_(state)
            joined = torch.cat(out, dim=2).permute(2, 0, 1, 3).flatten(2)
            return self.linear_proj(joined.to(mixed.dtype))

        def _begin(self, wide: torch.Tensor) -> torch.Tensor:
            """Return the state before the first token, [B, h, D, D]."""
            if self.cache is not None:
                return self._kept()
            return wide.new_zeros(wide.shape[0], self.heads, self.width, self.width)

        def _kept(self) -> torch.Tensor:
            assert isinstance(self.state, Recurrent)
            return self.state.sums

        def new_state(self, rows: int, tokens: int) -> Recurrent:
            return Recurrent(torch.zeros(rows, self.heads, self.width, self.width, dtype=torch.float32))

    return Layer


def _projections(model: Decoder) -> int:
    """Count the weights of both projections, which are all of the layer's."""
    return model.hidden_size * model.heads * (4 * model.head_dim + 1)


def _state(model: Decoder) -> int:
    """Count the elements of the heads' states."""
    return model.heads * model.head_dim**2


def _in_chunks(model: Decoder, seq_len: int) -> tuple[int, int]:
    """Count FLOPs per token as computed: queries with keys and states, and what they weigh and learn."""
    half = 2 * model.heads * model.head_dim * min(CHUNK, seq_len) + 2 * _state(model)
    return half, half


# efficientbench/architecture/variant.py says what each field means; what is left out is not known, or not supported.
VARIANT: AttentionVariant = AttentionVariant(
    config=Config,
    layer=f"{__name__}:layer",
    costs=AttentionCosts(
        parameters=_projections,
        projection_flops=lambda model: 2 * _projections(model),
        # What a token adds to the state, and what its query reads there: no key of an earlier token is read.
        score_flops=lambda model, seq_len: 4 * _state(model),
        causal_score_flops=lambda model, seq_len: 4 * _state(model),
        products=lambda model, seq_len: (2 * _state(model), 2 * _state(model)),
        computed_products=_in_chunks,
        keys_read_per_query=lambda model, seq_len: 0.0,
        # Further tokens add nothing to the state, which is in float32, and of which all is read and written back.
        cached=lambda model: 0,
        state_bytes=lambda model, tokens, tp, element_bytes: 4 * _state(model) // tp,
        decode_bytes=lambda model, tokens, element_bytes: 2 * 4 * _state(model),
        decode_flops=lambda model, tokens: 4 * _state(model),
        column_inputs=lambda model: (model.hidden_size,),
        replicated_parameters=lambda model: 0,
    ),
    matrices=lambda model: {
        "linear_in.weight": Stack(model.hidden_size, (*[model.head_dim] * 3, 1), repeats=model.heads),
        "linear_proj.weight": Stack(model.heads * model.head_dim, (model.hidden_size,)),
    },
    # Ranks hold whole heads, which every model's layout asks for.
    tensor_parallel=lambda model, tp: [],
    # The tiny models of check-variant: more than one chunk, the last not full.
    tiny=(f"training.seq_len={CHUNK + 8}",),
    further={"slow": ("model.attention.sharpness=0.25",)},
)
