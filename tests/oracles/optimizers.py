"""AdamW and Muon straight from their formulas, in float64, on models of others."""

from __future__ import annotations

import math

import torch

from efficientbench.architecture.gdn import GDNConfig
from efficientbench.architecture.mamba2 import Mamba2Config
from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.model import ModelConfig
from efficientbench.config.training import TrainingConfig

Tensors = dict[str, torch.Tensor]
UNDECAYED = ("bias", "norm", "_position", "table", "conv1d", "A_log", ".D")
"""In the models' names of what weight decay must leave alone."""


class AdamW:
    """Algorithm 2 of arXiv 1711.05101 after clipping by the norm of all gradients, in float64."""

    def __init__(self, model: torch.nn.Module, training: TrainingConfig) -> None:
        self.model, self.training, self.updates = model, training, 0
        self.parameters: Tensors = {}
        """What has had a gradient, by name."""
        self.moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    @torch.no_grad()
    def step(self, rate: float) -> float:
        """Update every parameter that has a gradient; return the norm of the gradients."""
        self.parameters = {name: each for name, each in self.model.named_parameters() if each.grad is not None}
        norm = math.sqrt(sum(float((each.grad**2).sum()) for each in self.parameters.values()))
        factor = min(1.0, self.training.gradient_clip / (norm + 1e-6))
        self.updates += 1
        for name, parameter in self.parameters.items():
            decay = 0.0 if any(part in name for part in UNDECAYED) else self.training.weight_decay
            self.update(name, parameter, parameter.grad * factor, rate, decay)
            parameter.grad = None
        return norm

    def update(self, name: str, parameter: torch.Tensor, gradient: torch.Tensor, rate: float, decay: float) -> None:
        """Update one parameter by its clipped gradient."""
        training, zero = self.training, torch.zeros_like(parameter)
        first, second = self.moments.get(name, (zero, zero))
        first = training.beta1 * first + (1 - training.beta1) * gradient
        second = training.beta2 * second + (1 - training.beta2) * gradient**2
        self.moments[name] = first, second
        unbiased = first / (1 - training.beta1**self.updates)
        size = (second / (1 - training.beta2**self.updates)).sqrt() + training.epsilon
        parameter -= rate * (unbiased / size + decay * parameter)


class Muon(AdamW):
    """Muon on the layers' matrices, each of which the other model may keep beside others, and AdamW on all else."""

    def __init__(self, model: torch.nn.Module, training: TrainingConfig, config: ModelConfig) -> None:
        super().__init__(model, training)
        self.config = config
        self.momenta: Tensors = {}

    def update(self, name: str, parameter: torch.Tensor, gradient: torch.Tensor, rate: float, decay: float) -> None:
        training = self.training
        if "embed_tokens" in name:
            rate *= (training.embedding_learning_rate or training.learning_rate) / training.learning_rate
        # Mixtral's `mlp.gate` is its router.
        is_matrix = ".layers." in name and parameter.dim() > 1 and "_position" not in name
        is_matrix = is_matrix and "conv1d" not in name and "A_log" not in name
        if not is_matrix or name.endswith("mlp.gate.weight"):
            super().update(name, parameter, gradient, rate, decay)
            return
        rate *= (training.matrix_learning_rate or 0.02) / training.learning_rate
        share = 0.85 + 0.1 * min((self.updates - 1) / 300, 1)
        before = self.momenta.get(name, torch.zeros_like(parameter))
        after = self.momenta[name] = share * before + (1 - share) * gradient
        ahead = share * after + (1 - share) * gradient
        parameter *= 1 - rate * decay
        if parameter.dim() == 3:
            for expert, matrices in enumerate(ahead):
                halves = matrices.chunk(2) if "gate_up" in name else [matrices]
                parameter[expert] -= rate * torch.cat([orthogonal(half) for half in halves])
            return
        for rows in self._rows(name, parameter.shape[0]):
            parameter[rows] -= rate * orthogonal(ahead[rows])

    def _rows(self, name: str, count: int) -> list[torch.Tensor]:
        """Return the numbers of the rows of each matrix in a weight."""
        attention, rows = self.config.attention, torch.arange(count)
        if isinstance(attention, MLAConfig) and "kv_a_proj" in name:
            return [rows[: attention.kv_lora_rank], rows[attention.kv_lora_rank :]]
        if isinstance(attention, MLAConfig) and "kv_b_proj" in name:
            within = rows % (attention.qk_nope_head_dim + attention.v_head_dim)
            return [rows[within < attention.qk_nope_head_dim], rows[within >= attention.qk_nope_head_dim]]
        if isinstance(attention, GDNConfig) and "in_proj_qkv" in name:
            keys = attention.key_heads * attention.key_dim
            return [rows[:keys], rows[keys : 2 * keys], rows[2 * keys :]]
        if isinstance(attention, Mamba2Config) and "in_proj" in name:
            inner, keys = attention.inner_size, attention.key_heads * attention.key_dim
            return list(rows.split([inner, inner, keys, keys, attention.heads]))
        if "linear_qkv" in name:
            # NSA: each group has its query heads, then three keys and three values.
            queries = self.config.heads // self.config.key_value_heads
            head = rows // self.config.head_dim % (queries + 6)
            return [rows[head < queries], *(rows[head == queries + other] for other in range(6))]
        return [rows]


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Five times the quintic on the singular values, which Newton-Schulz reaches without them; scaled as Muon is."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return (left * values) @ right * math.sqrt(max(1, matrix.shape[0] / matrix.shape[1]))
