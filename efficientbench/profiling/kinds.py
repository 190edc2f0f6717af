"""Which kind of work an operation of a trace belongs to, by names that torch and this harness give."""

from __future__ import annotations

from efficientbench.devices.registry import all_devices

KINDS = ("matmuls", "attention", "norms", "loss", "optimizer", "other", "communication", "idle")
"""`other`: activations, rotation, embedding, residuals, copies. `idle`: no operation runs."""

STEP = "training step"
OPTIMIZER = "optimizer step"

# Operations with all that they call, in the backward pass too, whose nodes are named after them.
_SCOPES = {
    "loss": ("LinearCrossEntropy",),
    "norms": ("RMSNorm", "rms_norm", "RmsNorm"),
    "attention": (
        "scaled_dot_product",
        "ScaledDotProduct",
        "BlockedAttention",
        "RangeAttention",
        "SelectedAttention",
        "flex_attention",
        "FlexAttention",
        "FusedAttn",
        "FlashAttn",
    ),
    "optimizer": (OPTIMIZER, "Optimizer.step"),
}
_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::linear", "GroupedLinear")
_MATMUL_PARTS = ("grouped_mm", "GroupedLinear")


def scope_of(name: str) -> str | None:
    """The kind that an operation gives to all that it calls; None where each of these is for itself."""
    return next((kind for kind, parts in _SCOPES.items() if any(part in name for part in parts)), None)


def kind_of(name: str) -> str:
    """The kind of an operation or kernel that no scope holds."""
    if is_communication(name):
        return "communication"
    if name.startswith(_MATMULS) or any(part in name for part in _MATMUL_PARTS):
        return "matmuls"
    return "other"


def is_communication(name: str) -> bool:
    """Whether it sends or waits for what others send: torch's collectives, and those of every device's library."""
    return name.startswith(("c10d::", *(f"{device.backend}:" for device in all_devices()))) or any(
        name.startswith(f"{device.backend}DevKernel") for device in all_devices()
    )
