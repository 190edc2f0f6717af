"""The names of recurrent layers' kernels, and their work beyond the formulas."""

from __future__ import annotations

from efficientbench.architecture.recurrent import recurrent
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import AttentionWork
from efficientbench.model.kernels import TORCH_DTYPES, recurrence_fla
from efficientbench.model.kernels.own_kernels import OwnKernels
from efficientbench.model.kernels.recurrence import BY_CHANNEL_NAME, DELTA_NAME, NAME


def _own(part: str, rule: recurrence_fla.Rule, name: str) -> OwnKernels:
    """Return the kernels of a model part: fla-core's for a rule, or else torch's of this name."""

    def refusal(config: RunConfig, device_type: str) -> str | None:
        keys, dtype = recurrent(config.model), TORCH_DTYPES[config.training.dtype]
        return recurrence_fla.refusal(rule, device_type, dtype, keys.key_dim, keys.value_dim)

    def names(config: RunConfig, device_type: str) -> dict[str, str]:
        return {part: name if refusal(config, device_type) else rule.name}

    def fallbacks(config: RunConfig, device_type: str) -> dict[str, str]:
        why = refusal(config, device_type) if device_type == "cuda" else None
        return {part: why} if why else {}

    def work(config: RunConfig, device_type: str) -> AttentionWork:
        # Torch keeps the products and states of chunks; fla-core computes about as many again as keys need forward.
        return AttentionWork(scores_again=refusal(config, device_type) is None)

    return OwnKernels(names, fallbacks, work)


GDN = _own("gated_delta_rule", recurrence_fla.DELTA, DELTA_NAME)
KDA = _own("gated_delta_rule", recurrence_fla.BY_CHANNEL, BY_CHANNEL_NAME)
MAMBA2 = _own("state_space", recurrence_fla.VALUES, NAME)
