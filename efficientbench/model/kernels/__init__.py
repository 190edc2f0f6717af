"""Which kernel serves this device: the arithmetic of the models, apart from their structure."""

from __future__ import annotations


def kernel_names() -> dict[str, str]:
    """Part of the model → the kernel that computes it, for the record."""
    from efficientbench.model.kernels import attention, cross_entropy, norm, rope, swiglu

    return {
        module.__name__.rpartition(".")[2]: module.NAME for module in (attention, cross_entropy, norm, rope, swiglu)
    }
