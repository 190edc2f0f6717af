"""MFU of gqa_1.5B on one H200 as it is predicted, before anything ran there: from rates that others measured.

NOT A MEASUREMENT of this project. What a rank computes and moves comes from `efficientbench.costs`; how fast, from the
figures below, which were fixed before the prediction:

- matrix products: cuBLAS's 716 TFLOP/s in bf16 on an H100 SXM at 4,096³ (P. Shankhdhar, Outperforming cuBLAS on H100),
  whose chip the H200 has. A product takes whole waves of 132 tiles of 128 × 256, and the last wave is not full; 716 is
  of 97 % full waves.
- attention: cuDNN's on an H100 SXM with heads of 128 at 2,048 tokens (FlashAttention-3, arXiv 2407.08608, figures 5 and
  6): 484 TFLOP/s forward with a causal mask; backward 465 without one, and less by the same share with one.
- memory: 2,903 of 3,350 GB/s for copies on an H100 (Voltage Park and AI @ Georgia Tech, vpbenchmarking).
- between queued kernels: 0.9 µs (A. Gray, Getting Started with CUDA Graphs: 3.8 µs for kernels of 2.9 µs),
  for the launches that tests/unit/training/test_gpu_step.py counts.

    python3 tests/benchmarks/predicted_mfu.py [--write]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import micro_batch_work, optimizer_work
from efficientbench.costs.memory import rank_embedding, rank_parameters, vocabulary_rows
from efficientbench.costs.model import FLOAT32_BYTES, flops_per_token
from efficientbench.devices.cpu import CPU
from efficientbench.metrics.sensors.hardware import device_rates

SMS, TILE = 132, (128, 256)
PRODUCTS = 716e12 / 0.97
FORWARD, BACKWARD = 484e12, 465e12 * 484 / 617
"""Of causal attention, FLOP/s; 617 is the forward pass's rate without a mask."""
MEMORY_SHARE = 2903 / 3350
GAP_S = 0.9e-6
"""Seconds between kernels."""
LAUNCHES_BEFORE, LAUNCHES = (1080, 700), (961, 38)
"""Of a micro-batch, and once in a step: before, and as tests/unit/training/test_gpu_step.py counts them."""

AUDITED, WANTED = (0.45, 0.48), 0.53
"""MFU that the state of before must come out at, and that the present one must reach at least."""


@dataclass(frozen=True)
class State:
    """A way to make a step."""

    micro_batch_size: int
    before: bool = False
    """With the output table's gradient in a sum of its own, two norms of the gradients, a pass that clips them, and all
    norms apart from the sums before them, and the bias apart from its product."""


STATES = {
    "before, micro-batch 2": State(2, before=True),
    "micro-batch 2": State(2),
    "micro-batch 4": State(4),
    "micro-batch 8": State(8),
}


def main() -> None:
    """Print each state's MFU; exit with 1 where one is not what it must be."""
    arguments = options(__doc__).parse_args()
    found = {name: predicted_mfu(state) for name, state in STATES.items()}
    rows = [{"state of the code": name, "predicted MFU": f"{100 * value:.1f} %"} for name, value in found.items()]
    conditions = (
        "PREDICTED, not measured: gqa_1.5B on one H200, bf16, 8 sequences of 2,048 a step; matrix products at cuBLAS's "
        "716 TFLOP/s in waves of 132 tiles, attention at cuDNN's 484 and 365 TFLOP/s, memory at 87 % of 4.8 TB/s, all "
        "measured by others on an H100"
    )
    print(conditions, *rows, sep="\n")
    if arguments.write:
        nowhere = {"machine": "none: a prediction for one H200 SXM", "software": "none"}
        write_content(__file__, CPU(), {**nowhere, "conditions": conditions, "rows": rows})
    low, high = AUDITED
    sys.exit(int(not low <= found["before, micro-batch 2"] <= high or found["micro-batch 8"] < WANTED))


def predicted_mfu(state: State) -> float:
    """Return model FLOPs over the device's peak in the time of a step."""
    sizes = [f"training.micro_batch_size={state.micro_batch_size}", "training.global_batch_size=8"]
    config = resolve("gqa_1.5B", overrides=[*sizes, "kernels.fused=true"])
    layout, training = Layout.of(config, devices=1, oversubscribe=True), config.training
    rates = device_rates("H200 SXM", training.dtype, None)
    bytes_s = rates.memory_bytes_s * MEMORY_SHARE
    tokens = training.micro_batch_size * training.seq_len
    work = micro_batch_work(config, layout, 0)
    moved = (
        sum(work[kind][0].moved_bytes for kind in ("norms", "elementwise", "embedding")) + work["loss"][1].moved_bytes
    )
    once = sum(work.moved_bytes for work in optimizer_work(config, layout, 0))
    if state.before:
        # Zeros, added to by every block, scaled, and added to the sums.
        moved += 6 * rank_embedding(config, layout) * FLOAT32_BYTES
        # The second norm's read, and clipping's read and write, for AdamW's write of what it has clipped.
        once += 2 * rank_parameters(config, layout, 0) * FLOAT32_BYTES
        # The first sum of a layer read again by its norm, and its gradients added in a pass of their own.
        moved += 3 * tokens * config.model.hidden_size * DTYPE_BYTES[training.dtype] * config.model.layers
    # As operations of their own, which the formulas leave out: gradients of queries, keys and values are joined, the
    # bias's gradient is their sum, and before the bias was added by a pass of its own.
    width = (config.model.heads + 2 * config.model.key_value_heads) * config.model.head_dim
    passes = 5 if state.before else 3
    moved += passes * tokens * width * DTYPE_BYTES[training.dtype] * config.model.layers
    products_s = sum(product_s(*shape) for shape in products(config, tokens))
    launches, launches_of_update = LAUNCHES_BEFORE if state.before else LAUNCHES
    micro_batch_s = products_s + attention_s(config, tokens) + moved / bytes_s + launches * GAP_S
    step_s = layout.micro_batches * micro_batch_s + once / bytes_s + launches_of_update * GAP_S
    model_flops = flops_per_token(config.model, training.seq_len).training * tokens * layout.micro_batches
    return model_flops / (step_s * rates.peak_flops)


def products(config: RunConfig, tokens: int) -> Iterator[tuple[int, int, int]]:
    """Yield rows, columns and depth of every matrix product of a micro-batch, forward and backward."""
    model = config.model
    heads = (model.heads + 2 * model.key_value_heads) * model.head_dim
    layer = (
        (model.hidden_size, heads),
        (model.heads * model.head_dim, model.hidden_size),
        (model.hidden_size, 2 * model.ffn_hidden_size),
        (model.ffn_hidden_size, model.hidden_size),
    )
    for inputs, outputs in layer * model.layers:
        yield from _passes(tokens, inputs, outputs)
    words = vocabulary_rows(config, Layout.of(config, devices=1, oversubscribe=True))
    block = config.kernels.loss_block // words
    for first in range(0, tokens, block):
        yield from _passes(min(block, tokens - first), model.hidden_size, words)


def _passes(rows: int, inputs: int, outputs: int) -> Iterator[tuple[int, int, int]]:
    yield rows, outputs, inputs
    yield rows, inputs, outputs
    yield outputs, inputs, rows


def product_s(rows: int, columns: int, depth: int) -> float:
    """Return the seconds of a product that fills whole waves of tiles."""
    tiles = math.ceil(rows / TILE[0]) * math.ceil(columns / TILE[1])
    waves = tiles / SMS
    return 2 * rows * columns * depth / PRODUCTS * math.ceil(waves) / waves


def attention_s(config: RunConfig, tokens: int) -> float:
    """Return the seconds of attention; its backward pass computes the scores again, 2.5 times the forward's FLOPs."""
    flops = config.model.attention_variant.costs.causal_score_flops(config.model, config.training.seq_len)
    forward = flops * tokens * config.model.layers
    return forward / FORWARD + 2.5 * forward / BACKWARD


if __name__ == "__main__":
    main()
