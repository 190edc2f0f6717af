"""Memory and work of a decoder by its shapes, on one rank, by the formulas of costs/memory.py and costs/compute.py."""

from __future__ import annotations

from efficientbench.config.schema import KernelsConfig
from efficientbench.costs.compute import Work, Works
from efficientbench.costs.memory import RankMemory
from efficientbench.costs.model import FLOAT32_BYTES
from efficientbench.planning.foreign.decoder import DecoderShape, Layer, matrix_weights

BF16_BYTES = 2


def training_memory(shape: DecoderShape, seq_len: int, runtime_bytes: int, kernels: KernelsConfig) -> RankMemory:
    """Estimate the memory of training with AdamW in bfloat16 on one rank, with one sequence in a micro-batch."""
    hidden, count, table = shape.hidden, shape.parameters, shape.table * BF16_BYTES
    waiting = table if shape.tied else 0
    widest = max(_inner(layer) for layer, _ in shape.layers)
    block = min(max(kernels.loss_block // shape.vocabulary, 1), seq_len) * shape.vocabulary
    copies = 2 * BF16_BYTES if kernels.fused else FLOAT32_BYTES + 2 * BF16_BYTES
    layer = waiting + seq_len * (widest + 2 * hidden) * BF16_BYTES
    loss = block * copies + table + seq_len * hidden * BF16_BYTES
    return RankMemory(
        weights=count * BF16_BYTES,
        gradients=count * FLOAT32_BYTES,
        master_weights=count * FLOAT32_BYTES,
        adam_moments=count * 2 * FLOAT32_BYTES,
        muon_momentum=0,
        activations=seq_len * (shape.over_layers(_saved) + 2 * hidden) * BF16_BYTES,
        workspace=max(layer, waiting + table, loss),
        runtime=runtime_bytes,
    )


def generation_memory(shape: DecoderShape, context: int, runtime_bytes: int) -> int:
    """Estimate the memory of weights in bfloat16, of one sequence's cache, and of a layer's tensors for its prompt."""
    inner = max(sum(part.inner for part in layer.feed_forward) for layer, _ in shape.layers)
    prompt = context * (inner + 4 * shape.hidden) * BF16_BYTES
    return shape.parameters * BF16_BYTES + shape.cache_bytes(context, BF16_BYTES) + prompt + runtime_bytes


def training_work(shape: DecoderShape, seq_len: int, kernels: KernelsConfig) -> dict[str, Works]:
    """Return the work of one sequence, forward and backward, by kind; the optimizer's is not in it."""
    residual, fused = seq_len * shape.hidden * BF16_BYTES, bool(kernels.fused)
    work: dict[str, Works] = {"matmuls": (), "attention": (), "norms": (), "elementwise": ()}
    for layer, count in shape.layers:
        weights, inner = matrix_weights(layer), sum(part.inner for part in layer.feed_forward)
        held = sum(part.weights for part in (*layer.mixers, *layer.feed_forward))
        widths = inner + 3 * shape.hidden + 2 * sum(mixer.weights for mixer in layer.mixers) // shape.hidden
        moved = held * 2 * (BF16_BYTES + FLOAT32_BYTES) + 3 * seq_len * widths * BF16_BYTES
        causal = sum(mixer.causal_flops(seq_len) for mixer in layer.mixers)
        saved = sum(mixer.saved for mixer in layer.mixers)
        # As in costs/compute.py: fused kernels read inputs and write outputs alone.
        rotated = sum((4 if fused else 6) * mixer.rotated for mixer in layer.mixers)
        values = seq_len * (inner * (8 if fused else 17) / 3 + rotated)
        each = {
            "matmuls": Work(2 * weights * 3 * seq_len, moved),
            "attention": Work(3 * seq_len * causal, 3 * seq_len * saved * BF16_BYTES),
            "norms": Work(0, 5 * _parts(layer) * residual),
            "elementwise": Work(0, values * BF16_BYTES + (4.5 if fused else 6) * _parts(layer) * residual),
        }
        for kind, part in each.items():
            work[kind] += (part.times(count),)
    table, logits = shape.table, 3 * seq_len * shape.vocabulary
    work["embedding"] = (Work(0, table * 2 * (BF16_BYTES + FLOAT32_BYTES) + 4 * residual),)
    softmax = logits / 3 * (4 * BF16_BYTES if fused else 11 * FLOAT32_BYTES + 2 * BF16_BYTES)
    blocks = -(-seq_len // max(kernels.loss_block // shape.vocabulary, 1))
    moved = table * blocks * 2 * (BF16_BYTES + FLOAT32_BYTES) + logits * BF16_BYTES
    work["loss"] = Work(2 * logits * shape.hidden, moved), Work(0, softmax)
    return work


def decode_work(shape: DecoderShape, tokens: int) -> dict[str, Works]:
    """Return the work of the `tokens`-th token of one sequence: weights and state are moved once."""
    flops = shape.over_layers(lambda layer: sum(mixer.decode_flops(tokens) for mixer in layer.mixers))
    weights = shape.active - (0 if shape.tied else shape.table)
    linear = 2 * (shape.over_layers(matrix_weights) + shape.table)
    return {
        "matmuls": (Work(linear, weights * BF16_BYTES),),
        "attention": (Work(flops, shape.cache_bytes(tokens, BF16_BYTES)),),
    }


def _inner(layer: Layer) -> int:
    return sum(part.saved for part in layer.feed_forward)


def _parts(layer: Layer) -> int:
    """Return how many times a layer reads the residual stream and adds to it."""
    return bool(layer.mixers) + bool(layer.feed_forward)


def _saved(layer: Layer) -> int:
    """Count the elements per token that a layer keeps: of each part also the input and the output of its norm."""
    return 2 * _parts(layer) * layer.hidden + sum(mixer.saved for mixer in layer.mixers) + _inner(layer)
