"""Products of float32 matrices on a CPU, each by the library that is faster there.

torch multiplies float32 matrices by its BLAS, on x86 oneMKL, and uses oneDNN only for narrower dtypes. Which one is
faster differs between processors, even of one maker, and between kinds of product. So each is timed once, and the times
are kept for later processes. In a decoding step, products of a few float32
tokens are computed as weight · tokensᵀ.
N = rows, I = inputs, O = outputs.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from efficientbench.basics.files import exclusive_lock
from efficientbench.devices.cpu import processor
from efficientbench.model.kernels import kept_timings

logger = logging.getLogger(__name__)

BLAS, ONEDNN = "BLAS", "oneDNN"
LINEAR, ADDED = "inputs · weightᵀ", "sum + outputsᵀ · inputs"
"""The kinds of product: of linear layers and the loss, and of their weights' gradients."""
MARGIN = 0.8
"""Share of the BLAS's time that oneDNN must stay below: by a smaller gain, chance would choose on some processors."""
ROWS, INPUTS, OUTPUTS = 1024, 384, 1024
"""Sizes of the products that are timed."""
ROUNDS = 7
"""Rounds in which both libraries are timed; the shortest time counts, as others may take the cores meanwhile."""
FEW_TOKENS = 8
"""Most tokens for which weight · tokensᵀ is faster on a CPU than tokens · weightᵀ, in float32."""


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x [..., I] · weightᵀ [I, O] + bias [O] → [..., O], written into `out` unless that is None; no gradient."""
    if by_onednn(LINEAR, x.device.type, x.dtype):
        product = multiply(x, weight, bias)
        return product if out is None else out.copy_(product)
    return F.linear(x, weight, bias) if out is None else torch.mm(x, weight.t(), out=out)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [..., I] · weightᵀ + bias → [..., O] by oneDNN: the operator by which torch.compile replaces layers."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def linear_of_few(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [..., I] · weightᵀ [I, O] + bias [O] → [..., O], fast for a few tokens, as in a decoding step."""
    tokens = x.shape[:-1].numel()
    if x.device.type != "cpu" or x.dtype != torch.float32 or tokens > FEW_TOKENS:
        return F.linear(x, weight, bias)
    rows = x.reshape(tokens, x.shape[-1])
    # A single column would be computed in one thread.
    columns = (F.pad(rows, (0, 0, 0, 1)) if tokens == 1 else rows).t()
    output = torch.mm(weight, columns)[:, :tokens].t().contiguous().view(*x.shape[:-1], len(weight))
    return output if bias is None else output + bias


def by_onednn(kind: str, device_type: str, dtype: torch.dtype) -> bool:
    """Return whether oneDNN serves a kind of product, by the times that were measured with so many threads.

    Where torch is set to deterministic algorithms, the BLAS does: another measurement could choose otherwise.
    """
    if not _are_timed(device_type, dtype):
        return False
    times_s = measured(kind, torch.get_num_threads())
    return bool(times_s) and times_s[ONEDNN] < MARGIN * times_s[BLAS]


def reasons(device_type: str, dtype: torch.dtype) -> dict[str, str]:
    """Return the model's parts whose products were timed, with the times, for the record."""
    if not _are_timed(device_type, dtype):
        return {}
    parts = {"cross_entropy": LINEAR, "weight_gradient": ADDED}
    times_s = {part: measured(kind, torch.get_num_threads()) for part, kind in parts.items()}
    return {
        part: "products: " + ", ".join(f"{library} {time_s * 1e3:.2f} ms" for library, time_s in each.items())
        for part, each in times_s.items()
        if each
    }


def _are_timed(device_type: str, dtype: torch.dtype) -> bool:
    if device_type != "cpu" or dtype != torch.float32 or torch.are_deterministic_algorithms_enabled():
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


@functools.cache
def measured(kind: str, threads: int) -> dict[str, float]:
    """Return library → seconds of a product, by times in the user's cache if it has any for this processor."""
    return kept_or_measured(
        kind, threads, Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "efficientbench"
    )


def kept_or_measured(kind: str, threads: int, folder: Path) -> dict[str, float]:
    """Return `measured`, whose cache is a folder. Processes that begin at once wait for the first and choose alike.

    Empty where nothing can be kept: each process would choose by times of its own.
    """
    shape = f"{kind}: {ROWS} × {INPUTS} × {OUTPUTS}, {threads} threads, {processor()}"
    path, conditions = kept_timings.place(folder, [BLAS, ONEDNN], shape, "cpu", of="products")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(path.with_suffix(".lock")):
            if kept_timings.read(path, conditions) is None:
                kept_timings.write(path, kept_timings.Timings(conditions, _times_s(kind), ()))
            kept = kept_timings.read(path, conditions)
    except OSError as error:
        logger.info("times of products are not kept in %s: %s", folder, error)
        return {}
    return {} if kept is None else dict(kept.times_s)


def _times_s(kind: str) -> tuple[tuple[str, float], ...]:
    """Return the libraries with their shortest times, the fastest first."""
    generator = torch.Generator().manual_seed(0)
    inputs, weight, outputs = (
        torch.randn(*sizes, generator=generator) for sizes in ((ROWS, INPUTS), (OUTPUTS, INPUTS), (ROWS, OUTPUTS))
    )
    total = torch.zeros(OUTPUTS, INPUTS)
    works: dict[str, Callable[[], object]] = {
        BLAS: lambda: F.linear(inputs, weight),
        ONEDNN: lambda: multiply(inputs, weight),
    }
    if kind == ADDED:
        works = {
            BLAS: lambda: total.addmm_(outputs.t(), inputs),
            ONEDNN: lambda: total.add_(multiply(outputs.t(), inputs.t())),
        }
    times_s = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS + 1):
        for library, work in works.items():
            begin_s = time.perf_counter()
            work()
            times_s[library] = min(times_s[library], time.perf_counter() - begin_s)
    return tuple(sorted(times_s.items(), key=lambda item: item[1]))
