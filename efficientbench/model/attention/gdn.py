"""Gated DeltaNet (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5: a recurrent layer without keys of earlier tokens.

S = sequence, B = micro-batch, H = hidden size, G = key heads of this tensor-parallel rank, R = value heads of a key
head, K and V = widths of a key and a value, c = tokens of the short convolution, D = its channels, G · (2 K + R V).
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import checkpoint, copy_to_tensor_model_parallel_region
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.architecture.gdn import GDNConfig
from efficientbench.architecture.variant import Decoder
from efficientbench.model.cache import Chunk, State, Stateful
from efficientbench.model.documents import Documents
from efficientbench.model.kernels.gated_delta_rule import STEP_NAME, gated_delta_rule, gated_delta_step
from efficientbench.model.kernels.norm import rms_norm
from efficientbench.model.kernels.short_convolution import short_convolution
from efficientbench.model.layers import column_parallel, row_parallel, split_parameter
from efficientbench.model.position import Position

LEAST_DECAY, LARGEST_DECAY = 0.01, 16.0
"""Between them A begins, evenly distributed."""
SMALLEST_SQUARE = 1e-6
"""Added to the square of a query's or a key's length."""


class Recurrent(State):
    """What decoding keeps, however many tokens there were."""

    def __init__(self, sums: torch.Tensor, inputs: torch.Tensor) -> None:
        """Take the heads' states [B, G · R, K, V] in float32, and the convolution's latest inputs [B, c − 1, D]."""
        self.sums, self.inputs = sums, inputs


class GatedDeltaNet(Stateful, MegatronModule):
    """The layer, projections included: hidden states [S, B, H] → [S, B, H].

    A projection gives each key head its query, key, values, output gates z, strengths b and decays a. Queries, keys and
    values pass a short convolution, and queries and keys are then brought to length 1. With β = sigmoid(b) and
    g = −A · softplus(a + dt_bias), the gated delta rule computes an output o for each value head, and

        u = W_O [norm(o_1) · silu(z_1); …]

    The norm's weight is shared by all heads. Every tensor-parallel rank has it, and the ranks sum its gradient.
    """

    decodes_by = STEP_NAME

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        *,
        widths: GDNConfig,
    ) -> None:
        super().__init__(config)
        self.widths, self.tp_group = widths, pg_collection.tp
        self.groups, self.repeats = widths.key_heads // self.tp_group.size(), widths.heads // widths.key_heads
        group = widths.convolved // widths.key_heads
        self.parts = [group, self.repeats * widths.value_dim, self.repeats, self.repeats]
        hidden, output = config.hidden_size, widths.heads * widths.value_dim
        self.linear_in = column_parallel(config, hidden, widths.key_heads * sum(self.parts), self.tp_group)
        self.linear_proj = row_parallel(config, output, hidden, self.tp_group)
        # As torch.nn.Conv1d begins.
        bound = 1 / math.sqrt(widths.convolution)
        shape = self.groups * group, widths.convolution
        self.conv_weight = split_parameter(config, shape, lambda share: (2 * share - 1) * bound)
        heads = (self.groups * self.repeats,)
        self.A_log = split_parameter(config, heads, _logarithm_of_decay)
        self.dt_bias = split_parameter(config, heads, torch.ones_like)
        self.out_norm: torch.nn.Parameter | None = None
        if config.norm_weights:
            place = {"dtype": config.params_dtype, "device": torch.get_default_device()}
            self.out_norm = torch.nn.Parameter(torch.empty(widths.value_dim, **place))

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: None = None,
        packed_seq_params: Documents | None = None,
        **unused: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute hidden_states [S, B, H] → output [S, B, H], and None for the bias.

        `packed_seq_params`: the documents, at whose begin the state is empty; None: each sequence is one.
        """
        mixed, _ = self.linear_in(hidden_states)
        compute = functools.partial(self._compute, None if packed_seq_params is None else packed_seq_params.positions)
        if self.training and self.config.recompute_granularity == "selective":
            return self.linear_proj(checkpoint(compute, False, mixed))
        return self.linear_proj(compute(mixed))

    def _compute(self, positions: torch.Tensor | None, mixed: torch.Tensor) -> torch.Tensor:
        """Compute the layer between its projections: mixed [S, B, ·] → [S, B, G · R · V].

        `positions`: [S, B], each token's position in its document; None: each sequence is one.
        """
        widths, chunk = self.widths, None if self.cache is None else self.cache.chunk
        convolved, gate, beta, decay = _parted(mixed, self.groups).split(self.parts, dim=3)
        convolved, gate = convolved.flatten(2), _parted(gate, self.repeats).flatten(2, 3)
        beta, decay = _wide(beta.flatten(2)).sigmoid(), _wide(decay.flatten(2))
        decay = -_wide(self.A_log).exp() * F.softplus(decay + _wide(self.dt_bias))
        if positions is not None:
            decay = decay.masked_fill((positions == 0)[..., None], -torch.inf)
        if chunk is not None:
            # Tokens that fill a row leave its state as it is.
            counts = torch.arange(len(mixed), device=mixed.device)[:, None] < chunk.counts
            beta, decay = beta * counts[..., None], decay * counts[..., None]
        before = None if chunk is None else self._take_inputs(convolved, chunk)
        convolved = short_convolution(convolved, self.conv_weight, before, positions)
        by_group = _parted(convolved, self.groups)
        query, key, value = by_group.split([widths.key_dim, widths.key_dim, self.parts[1]], dim=3)
        value = _parted(value, self.repeats).flatten(2, 3)
        out = self._recall(_of_length_1(query), _of_length_1(key), value, decay, beta)
        weight = self.out_norm
        if weight is not None:
            weight = copy_to_tensor_model_parallel_region(weight, group=self.tp_group)
        normed = rms_norm(out, weight, self.config.layernorm_epsilon, self.config.fuse)
        return (normed * F.silu(gate)).flatten(2)

    def _recall(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        """Apply the gated delta rule, from the state of earlier tokens where there is one; shapes as of the kernel."""
        if self.cache is None:
            with torch.autograd.profiler.record_function("GatedDeltaRule"):
                return gated_delta_rule(query, key, value, decay, beta)[0]
        assert isinstance(self.state, Recurrent)
        if len(query) == 1:
            return gated_delta_step(query, key, value, decay, beta, self.state.sums)
        out, sums = gated_delta_rule(query, key, value, decay, beta, self.state.sums)
        self.state.sums.copy_(sums)
        return out

    def _take_inputs(self, x: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        """Return the c − 1 inputs [c − 1, B, D] before a chunk's [S, B, D], and keep the latest that count."""
        assert isinstance(self.state, Recurrent)
        kept = self.state.inputs
        joined = torch.cat([kept, x.transpose(0, 1)], dim=1)
        latest = chunk.counts[:, None] + torch.arange(kept.shape[1], device=kept.device)
        kept.copy_(joined.gather(1, latest[..., None].expand_as(kept)))
        return joined[:, : kept.shape[1]].transpose(0, 1)

    def new_state(self, rows: int, tokens: int) -> Recurrent:
        widths, heads = self.widths, self.groups * self.repeats
        inputs = rows, widths.convolution - 1, len(self.conv_weight)
        sums = torch.zeros(rows, heads, widths.key_dim, widths.value_dim, dtype=torch.float32)
        return Recurrent(sums, torch.zeros(inputs, dtype=self.config.params_dtype))


def _parted(x: torch.Tensor, parts: int) -> torch.Tensor:
    """Return x [..., parts · N] as [..., parts, N]; torch.compile does not trace `unflatten` here."""
    return x.reshape(*x.shape[:-1], parts, -1)


def _logarithm_of_decay(share: torch.Tensor) -> torch.Tensor:
    return (LEAST_DECAY + share * (LARGEST_DECAY - LEAST_DECAY)).log()


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Return x in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _of_length_1(x: torch.Tensor) -> torch.Tensor:
    """Bring queries or keys [..., K] to length 1."""
    wide = _wide(x)
    return wide * (wide.square().sum(dim=-1, keepdim=True) + SMALLEST_SQUARE).rsqrt()


def spec(model: Decoder, position: Position) -> ModuleSpec:
    """Return the ModuleSpec of the layer, projections included; it has no positional encoding."""
    return ModuleSpec(module=GatedDeltaNet, params={"widths": model.attention})
