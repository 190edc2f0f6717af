"""Recurrent layers, without keys of earlier tokens: what Gated DeltaNet and Mamba-2 share.

S = sequence, B = micro-batch, H = hidden size, G = key heads of this tensor-parallel rank, R = value heads of a key
head, K and V = widths of a key and a value, c = tokens of the short convolution, D = its channels, G · (2 K + R V).
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import checkpoint
from megatron.core.transformer import MegatronModule, TransformerConfig

from efficientbench.architecture.recurrent import RecurrentConfig
from efficientbench.model.cache import Chunk, State, Stateful
from efficientbench.model.documents import Documents
from efficientbench.model.kernels.recurrence import STEP_NAME, recurrence, recurrence_step
from efficientbench.model.kernels.short_convolution import short_convolution
from efficientbench.model.layers import column_parallel, row_parallel, split_parameter

LEAST_STEP, LARGEST_STEP = 1e-3, 0.1
"""Between them Δ begins for an input of 0, evenly distributed by its logarithm."""


class Recurrent(State):
    """What decoding keeps, however many tokens there were."""

    def __init__(self, sums: torch.Tensor, inputs: torch.Tensor) -> None:
        """Take the heads' states [B, G · R, K, V] in float32, and the convolution's latest inputs [B, c − 1, D]."""
        self.sums, self.inputs = sums, inputs


class RecurrentLayer(Stateful, MegatronModule):
    """A recurrent layer, projections included: hidden states [S, B, H] → [S, B, H].

    A projection gives each key head its query, key, values, output gates z, strengths b where it has them, and steps a.
    Queries, keys and values pass a short convolution. With β = sigmoid(b), Δ = softplus(a + dt_bias) and g = −A · Δ,
    `mix` computes what enters the last projection. Weights and vectors lie by heads, whole ones on a tensor-parallel
    rank.
    """

    decodes_by = STEP_NAME
    decays: ClassVar[tuple[float, float]]
    """Between them A begins, evenly distributed."""
    projects_gates: ClassVar[bool] = True
    """Whether the first projection gives gates and steps too."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        *,
        widths: RecurrentConfig,
    ) -> None:
        super().__init__(config)
        self.widths, self.tp_group = widths, pg_collection.tp
        self.groups, self.repeats = widths.key_heads // self.tp_group.size(), widths.heads // widths.key_heads
        group = widths.convolved // widths.key_heads
        gates = [self.repeats * widths.value_dim] if self.projects_gates else []
        self.parts = [group, *gates, *[self.repeats] * widths.scalars]
        self.linear_in = column_parallel(config, config.hidden_size, widths.key_heads * sum(self.parts), self.tp_group)
        self.linear_proj = row_parallel(config, widths.outputs, config.hidden_size, self.tp_group)
        self.conv_weight = self._convolution(self.groups * group, widths.convolution)
        self.conv_bias: torch.nn.Parameter | None = None
        heads, (least, largest) = (self.groups * self.repeats,), self.decays
        self.A_log = split_parameter(config, heads, lambda share: (least + share * (largest - least)).log())
        self.dt_bias = split_parameter(config, (heads[0] * widths.decays,), self.first_bias)
        self.add_parameters()

    def add_parameters(self) -> None:
        """Add the weights that this kind of layer has beside those of all."""

    def _convolution(self, *shape: int) -> torch.nn.Parameter:
        """Make a parameter of the short convolution, which begins as that of torch.nn.Conv1d."""
        bound = 1 / math.sqrt(self.widths.convolution)
        return split_parameter(self.config, shape, lambda share: (2 * share - 1) * bound)

    @staticmethod
    def first_bias(share: torch.Tensor) -> torch.Tensor:
        """Return the initial law of dt_bias, as `layers.QUANTILES` says: the inverse of softplus at Δ."""
        step = (math.log(LEAST_STEP) + share * math.log(LARGEST_STEP / LEAST_STEP)).exp()
        return step + (-torch.expm1(-step)).log()

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
        projected = self.project(hidden_states)
        compute = functools.partial(self._compute, None if packed_seq_params is None else packed_seq_params.positions)
        if self.training and self.config.recompute_granularity == "selective":
            return self.linear_proj(checkpoint(compute, False, *projected))
        return self.linear_proj(compute(*projected))

    def project(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Project hidden states [S, B, H] to what `split` takes."""
        return (self.linear_in(hidden_states)[0],)

    def split(self, *projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """Return what is convolved, [S, B, D], z [S, B, G · R, V], each b [S, B, G · R], and a [S, B, G · R(, K)]."""
        convolved, gate, *scalars = parted(projected[0], self.groups).split(self.parts, dim=3)
        *strengths, step = (each.flatten(2) for each in scalars)
        return convolved.flatten(2), parted(gate, self.repeats).flatten(2, 3), strengths, step

    def _compute(self, positions: torch.Tensor | None, *projected: torch.Tensor) -> torch.Tensor:
        """Compute the layer between its projections, from what `project` returns → [S, B, G · R · V].

        `positions`: [S, B], each token's position in its document; None: each sequence is one.
        """
        widths, chunk = self.widths, None if self.cache is None else self.cache.chunk
        convolved, gate, strengths, step = self.split(*projected)
        strengths = [wide(each).sigmoid() for each in strengths]
        step = F.softplus(wide(step) + wide(self.dt_bias).view(step.shape[2:]))
        if chunk is not None:
            # Tokens that fill a row leave its state as it is.
            counts = torch.arange(len(step), device=step.device)[:, None] < chunk.counts
            strengths, step = [each * counts[..., None] for each in strengths], step * _fitted(counts, step.dim())
        decay = -_fitted(wide(self.A_log).exp(), step.dim() - 2) * step
        if positions is not None:
            decay = decay.masked_fill(_fitted(positions == 0, step.dim()), -torch.inf)
        before = None if chunk is None else self._take_inputs(convolved, chunk)
        convolved = short_convolution(convolved, self.conv_weight, self.conv_bias, before, positions)
        sizes = [widths.key_dim, widths.key_dim, self.repeats * widths.value_dim]
        query, key, value = parted(convolved, self.groups).split(sizes, dim=3)
        value = parted(value, self.repeats).flatten(2, 3)
        return self.mix(query, key, value, gate, decay, step, *strengths)

    def mix(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor,
        decay: torch.Tensor,
        step: torch.Tensor,
        *strengths: torch.Tensor,
    ) -> torch.Tensor:
        """Return what enters the last projection, [S, B, G · R · V].

        Args:
            query: [S, B, G, K]
            key: [S, B, G, K]
            value: [S, B, G · R, V]
            gate: z, [S, B, G · R, V].
            decay: g, [S, B, G · R], in float32 or wider, as what follows.
            step: Δ, [S, B, G · R].
            strengths: β, [S, B, G · R], where the layer has them.
        """
        raise NotImplementedError

    def recall(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        beta: torch.Tensor | None,
    ) -> torch.Tensor:
        """Apply the recurrence, from the state of earlier tokens where there is one; shapes as of the kernel."""
        if self.cache is None:
            with torch.autograd.profiler.record_function("Recurrence"):
                return recurrence(query, key, value, decay, beta)[0]
        assert isinstance(self.state, Recurrent)
        if len(query) == 1:
            return recurrence_step(query, key, value, decay, beta, self.state.sums)
        out, sums = recurrence(query, key, value, decay, beta, self.state.sums)
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


def _fitted(x: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Return x with so many dimensions, the new ones behind its own."""
    return x.reshape(*x.shape, *[1] * (dimensions - x.dim()))


def parted(x: torch.Tensor, parts: int) -> torch.Tensor:
    """Return x [..., parts · N] as [..., parts, N]; torch.compile does not trace `unflatten` here."""
    return x.reshape(*x.shape[:-1], parts, -1)


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return x in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
