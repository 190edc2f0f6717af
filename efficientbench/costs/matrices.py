"""The matrices of layers, which Muon updates, and the cost of their orthogonalization, without torch."""

from __future__ import annotations

from collections.abc import Iterator

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import Stack, UndeclaredError
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import FLOAT32_BYTES

EXPERTS = "mlp.experts."
"""The beginning of the names of the experts' weights in a layer."""
NEWTON_SCHULZ_STEPS = 5
"""Steps of the iteration that makes a matrix orthogonal."""


def layer_matrices(model: ModelConfig) -> dict[str, Stack]:
    """Return the matrices of a view's layer by their weight's name within the layer, without the router.

    Raises UndeclaredError: the attention does not declare its matrices.
    """
    attention = model.attention_variant
    if attention.matrices is None:
        raise UndeclaredError(f"model.attention.kind={model.attention.kind} does not declare its matrices")
    moe, width, hidden = model.moe, model.ffn_hidden_size, model.hidden_size
    networks = {"mlp": (width, 1)} if moe is None else {"mlp.experts": (width, moe.experts)}
    if moe is not None and moe.shared_experts:
        networks["mlp.shared_experts"] = (moe.shared_experts * width, 1)
    found = {f"self_attention.{name}": stack for name, stack in attention.matrices(model).items()}
    for place, (inner, copies) in networks.items():
        # Gate and up projection lie in one weight, one above the other.
        heights = (inner, inner) if model.activation == "swiglu" else (inner,)
        found[f"{place}.linear_fc1.weight"] = Stack(hidden, heights, copies=copies)
        found[f"{place}.linear_fc2.weight"] = Stack(inner, (hidden,), copies=copies)
    return found


def rank_matrices(config: RunConfig, layout: Layout) -> int:
    """Count the parameters of one rank that Muon updates: all matrices of its layers."""
    return sum(count * held for each, count in config.stage_views for held, _ in _on_rank(each, layout))


def muon_flops(config: RunConfig, layout: Layout) -> float:
    """Count the FLOPs of one rank in an update by Muon.

    A step of the iteration multiplies a matrix [m, n], m ≤ n, by its transpose, the product by itself, and that by the
    matrix: 2 m² n + 2 m³ + 2 m² n. Every rank computes the complete matrix that tensor-parallel ranks share, and every
    replica computes the same.
    """
    flops = 0.0
    for each, count in config.stage_views:
        for _, stack in _on_rank(each, layout):
            for short, long in map(sorted, stack.shapes):
                flops += count * _copies(stack, layout) * NEWTON_SCHULZ_STEPS * 2 * short**2 * (2 * long + short)
    return flops


def gathered_matrices(config: RunConfig, layout: Layout) -> int:
    """Count the parameters of the complete matrices that one rank gathers from the other tensor-parallel ranks."""
    return sum(
        count * (stack.parameters // stack.copies) * _copies(stack, layout)
        for each, count in config.stage_views
        for name, stack in layer_matrices(each.model).items()
        if _ranks(each, name, stack) > 1
    )


def muon_bytes(config: RunConfig, layout: Layout) -> int:
    """Estimate the temporary tensors of Muon's update of the largest weight, with all of its experts on a rank.

    They are three float32 tensors of the complete weight, the clipped gradient, the new momentum and Nesterov's update,
    and tensors in the products' dtype that amount to two more.
    """
    stacks = [stack for view in config.model.views.values() for stack in layer_matrices(view).values()]
    largest = max(stack.parameters // stack.copies * _copies(stack, layout) for stack in stacks)
    return largest * 5 * FLOAT32_BYTES


def _on_rank(config: RunConfig, layout: Layout) -> Iterator[tuple[int, Stack]]:
    """Yield each weight of a layer with the number of its parameters that one rank holds."""
    for name, stack in layer_matrices(config.model).items():
        held = stack.parameters // stack.copies * _copies(stack, layout) // _ranks(config, name, stack)
        yield held, stack


def _copies(stack: Stack, layout: Layout) -> int:
    """Return how many of a layer's experts are on one rank; 1 for a weight outside the experts."""
    return stack.copies // layout.ep if stack.copies > 1 else 1


def _ranks(config: RunConfig, name: str, stack: Stack) -> int:
    """Return how many ranks split one weight."""
    parallel = config.parallel
    return (parallel.expert_tp if name.startswith(EXPERTS) else parallel.tp) if stack.split else 1
