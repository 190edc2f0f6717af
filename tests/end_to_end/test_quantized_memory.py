"""A model with quantized weights takes the memory of the formula after loading; a kernel that keeps more is found."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from efficientbench.config.load import resolve
from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.costs.quantization import weight_bytes
from efficientbench.devices.quantized import form_of

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.proof, pytest.mark.alone]

LAYERS = (
    "model.vocab_size=256",
    "model.hidden_size=1024",
    "model.ffn_hidden_size=4096",
    "model.heads=16",
    "device=cpu",
)
INT8, INT4 = Quantization(weights="int8"), Quantization(weights="int4")


def resident_bytes() -> int:
    """Resident memory of this process but mapped files."""
    _, resident, mapped, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(mapped)) * os.sysconf("SC_PAGE_SIZE")


def plant_wide_copies() -> None:
    """Let this process's kernel of int8 keep the rounded weight in full width, where no count of buffers sees it."""
    from efficientbench.devices import quantized
    from efficientbench.model.kernels import quantized as kernels

    class KeepsItWide(kernels.Int8):
        def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
            stored = super().packed(weight)
            self.wide = stored["codes"].to(weight.dtype) * stored["scales"][:, None]
            return stored

    kernels.CLASSES[quantized.INT8] = KeepsItWide


def loaded_bytes(small: RunConfig, large: RunConfig, quantization: Quantization, planted: bool) -> int:
    """How much more memory the larger model takes, once the smaller one has made the process load what both need.

    The smaller one is loaded twice: the first model of a process stays, since `devices.loading` freezes its frame.
    """
    from efficientbench.generation.open_run import with_random_weights

    if planted:
        plant_wide_copies()
    resident = []
    for config in (small, small, large):
        with with_random_weights(config, quantization):
            gc.collect()
            resident.append(resident_bytes())
    return resident[2] - resident[1]


def added_and_expected(quantization: Quantization, planted: bool = False) -> tuple[int, int]:
    """The bytes that eight layers more take in a process of its own, and by the formula."""
    small, large = (
        resolve("gqa_0.5B", overrides=[*LAYERS, f"model.layers={layers}", "training.dtype=bf16"]) for layers in (1, 9)
    )
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        added = pool.submit(loaded_bytes, small, large, quantization, planted).result()
    form = form_of(quantization, "cpu", "bf16")
    return added, weight_bytes(large.model, "bf16", form) - weight_bytes(small.model, "bf16", form)


@pytest.mark.parametrize("quantization", [INT8, INT4], ids=lambda each: each.name)
def test_resident_memory_after_loading_is_within_5_percent_of_the_formula(quantization: Quantization) -> None:
    added, expected = added_and_expected(quantization)
    assert added == pytest.approx(expected, rel=0.05)


def test_a_kernel_that_keeps_wide_copies_takes_more_memory_than_the_formula() -> None:
    added, expected = added_and_expected(INT8, planted=True)
    assert added > 1.05 * expected
