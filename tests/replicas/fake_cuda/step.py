"""Make one optimizer step of a run of the matrix on the fake device, and print as JSON what it asked for.

    python step.py LIBRARY RUN [KEY=VALUE ...]

Devices, dtypes, autograd and reads by the host are real; there is no memory and there are no numbers. What needs them
has a stand-in with the same tensors: Triton's kernels, ours and fla's, FlexAttention, the choice of an attention kernel
by time, and the experts' counts of rows, which are equal here. In a layout of several ranks this is the first of them,
and its transfers send nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ctypes.CDLL(sys.argv[1])  # before torch is imported

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
warnings.simplefilter("ignore")

import numpy as np
import torch
from replicas.fake_cuda import names

names.install()

import torch.distributed as dist


@contextlib.contextmanager
def one_by_one(*arguments: object, **options: object) -> Iterator[_CoalescingManager]:
    """Begin the block's transfers one by one: the fake backend has none of several at once."""
    yield _CoalescingManager()


dist._coalescing_manager = one_by_one  # before megatron takes it

from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from replicas.fake_cuda.launches import Launches
from support.repository import ROOT
from support.training_steps import our_step, random_tokens
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.distributed_c10d import _CoalescingManager
from torch.testing._internal.distributed.fake_pg import FakeStore
from triton.runtime.jit import KernelInterface

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.model import context_parallel, gpt, megatron_patches
from efficientbench.model.kernels import cross_entropy, flex, grouped_mm, norm, relu2, rope, swiglu, weight_gradient
from efficientbench.model.kernels.choose_attention import AttentionShape
from efficientbench.model.kernels.nsa import choose_blocks, gate
from efficientbench.planning.plan import make_plan
from efficientbench.training import groups
from efficientbench.training.trainer import Trainer
from efficientbench.training.update import optimizer

Tensor = torch.Tensor


def flex_attention(launches: Launches, with_sums: bool) -> Any:
    """Return what stands in for FlexAttention compiled: a kernel, and one that scales the sums for the caller.

    The backward pass is a kernel too, and one before it for each row's product of output and gradient.
    """

    class Attended(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            launches.operations["flex_attention"] += 1 + with_sums
            # It keeps the order in which the query's dimensions lie in memory.
            out, log_sums = torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)
            ctx.save_for_backward(query, key, value, out, log_sums)
            ctx.mark_non_differentiable(log_sums)
            ctx.set_materialize_grads(False)
            return out, log_sums

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
            launches.operations["flex_attention_backward"] += 2
            return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:3])

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        results = Attended.apply(query, key, value)
        return results if with_sums else results[0]

    return attend


def flex_attention_with_sinks(launches: Launches) -> Any:
    """Return what stands in for FlexAttention with sinks: its kernels, one that scales, and two for gradients of that.

    What is kept is the output before it is scaled.
    """

    class Attended(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> Tensor:
            launches.operations["flex_attention"] += 2
            log_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
            ctx.save_for_backward(query, key, value, sinks, torch.empty_like(query), log_sums)
            return torch.empty_like(query)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
            launches.operations["flex_attention_backward"] += 4
            return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:4])

    return lambda *tensors, **options: Attended.apply(*tensors)


def count_triton(launches: Launches) -> None:
    """Count every launch of a Triton kernel, and run none."""

    def launch(kernel: Any, grid: Any) -> Any:
        while not hasattr(kernel, "__name__"):  # what chooses a configuration, or parameters
            kernel = kernel.fn
        return lambda *arguments, **options: launches.operations.update([kernel.__name__])

    KernelInterface.__getitem__ = launch


def count_micro_batch(launches: Launches) -> None:
    """Count apart what comes before the update."""
    compute = Trainer._forward_backward

    def compute_and_count(trainer: Trainer, *arguments: Any, **options: Any) -> Any:
        before = launches.operations.total()
        results = compute(trainer, *arguments, **options)
        launches.before_update = launches.operations.total() - before
        return results

    Trainer._forward_backward = compute_and_count


def flash(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention by the operation that torch's flash kernel is; [S, B, heads, D] → [S, B, heads · D]."""
    width = value.shape[-1]
    padded = torch.nn.functional.pad(value, (0, query.shape[-1] - width)) if width < query.shape[-1] else value
    parts = (each.permute(1, 2, 0, 3) for each in (query, key, padded))
    out = torch.ops.aten._scaled_dot_product_flash_attention(*parts, 0.0, True, scale=scale)[0]
    return out[..., :width].permute(2, 0, 1, 3).flatten(2)


def gathered(found: list[Any], own: Any, group: object = None) -> None:
    """Gather objects of the only rank, without turning them into tensors."""
    found[:] = [own] * len(found)


def stand_in(config: RunConfig, launches: Launches) -> None:
    """Replace what needs numbers."""
    dist.all_gather_object = gathered
    CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    plain = functools.partial(context_parallel.attention, kernel=flash) if config.parallel.cp > 1 else flash
    gpt._attention_kernel = lambda view, device: plain if AttentionShape.of(view) else gpt.causal_attention
    optimizer._obeys = lambda device: True
    weight_gradient.adds_wide = lambda device_type, dtype: device_type == "cuda"
    weight_gradient._add_wide = launches.as_one("addmm.dtype_out", lambda total, left, right: None)
    count_micro_batch(launches)
    for module in (norm, rope, swiglu, relu2, cross_entropy, choose_blocks, gate):
        module.fused = functools.cache(
            lambda function, widths=(): launches.as_one(f"fused {function.__name__}", function)
        )
    flex.runs = lambda device_type: device_type == "cuda"
    attend, attend_with_sums = (flex_attention(launches, with_sums) for with_sums in (False, True))
    flex.compiled, flex.compiled_with_sums = lambda: attend, lambda: attend_with_sums
    attend_with_sinks = flex_attention_with_sinks(launches)
    flex.compiled_with_sinks = lambda: attend_with_sinks
    count_triton(launches)
    training, parallel, moe = config.training, config.parallel, config.model.moe
    if moe is not None:
        ranks = parallel.cp * (parallel.tp if parallel.sp else 1)
        rows = training.micro_batch_size * training.seq_len // ranks * moe.top_k
        grouped_mm.RowGroups.sizes = property(lambda self: [rows // len(self.ends)] * len(self.ends))
        megatron_patches._move_to_host = functools.partial(equal_counts, rows)
        MoEAlltoAllTokenDispatcher.__init__ = with_numbers(MoEAlltoAllTokenDispatcher.__init__)


def with_numbers(build: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor whose tensors, on the host, have numbers: a dispatcher sorts its rows by such a list."""

    def build_with_numbers(*arguments: Any, **options: Any) -> None:
        with unset_fake_temporarily():
            build(*arguments, **options)

    return build_with_numbers


def equal_counts(rows: int, counts: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """What the host gets of counts: where it needs their values, as many rows for each of them."""
    if not isinstance(counts, Tensor):
        return counts
    if counts.dim() == 1 and not as_numpy:
        return counts.cpu()
    return np.full(tuple(counts.shape), rows // counts.numel())


def main() -> None:
    logging.getLogger("megatron").setLevel(logging.ERROR)
    config = resolve(sys.argv[2], False, ["kernels.fused=true", "training.draw_weights_on=cpu", *sys.argv[3:]])
    layout = Layout.of(config, devices=1, oversubscribe=True)
    plan = make_plan(config, layout, runtime_bytes=0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
    launches = Launches()
    stand_in(config, launches)
    seen: dict[str, Any] = {"plan_bytes": plan.memory[0].total}
    with groups.model_parallel(config.parallel, seed=0), FakeTensorMode(), launches:
        # One token more than this rank has of each sequence.
        sequences = random_tokens(config, names.DEVICE)[:, : config.training.seq_len // layout.cp + 1]
        step, stage = our_step(config, names.DEVICE, sequences)
        places = [*stage.named_parameters(), *stage.named_buffers()]
        seen["off_device"] = [name for name, tensor in places if tensor.device != names.DEVICE]
        for _ in range(2):  # the first step makes what lives on
            launches.begin()
            names.WAITS.clear()
            seen["first_read"] = where_it_reads(step)
    seen |= {
        "launches": launches.operations.total(),
        "before_update": launches.before_update,
        "most": dict(launches.operations.most_common(40)),
        "moved_bytes": launches.moved_bytes,
        "copies_to_host": launches.to_host,
        "copies_to_device": launches.to_device,
        "waits": names.WAITS,
        "peak_bytes": launches.peak_bytes,
    }
    print(json.dumps(seen))


def where_it_reads(step: Any) -> str:
    """Make a step until the host needs a number; return the file and the function that asked."""
    try:
        step()
    except Exception as error:
        ours = f"{ROOT / 'efficientbench'}/"
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(ours)]
        return f"{Path(frames[-1].filename).name} {frames[-1].name}: {type(error).__name__} {error}"[:300]
    return "no read"


if __name__ == "__main__":
    main()
