"""The windows of measured generation on an accelerator: what other work leaves in memory or in the queue is in none."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

import pytest
from oracles.oracle import build
from support.configs import tiny

from efficientbench.devices.cpu import CPU
from efficientbench.generation import generate as generating
from efficientbench.generation.decoder import Decoder
from efficientbench.generation.measuring import measure as measuring
from efficientbench.generation.measuring.measure import Setting, measure
from efficientbench.generation.memory import Case
from efficientbench.generation.sampling import Sampling
from efficientbench.metrics.records.generation.generation import GenerationRow

pytestmark = pytest.mark.usefixtures("single_rank")

PREFILL_BYTES = 10**9
"""What the prefill of a row needs beside the cache."""
ZEROS_S = 0.05
"""How long the device fills a new cache with zeros."""


class Memory:
    """The memory functions of a torch device module: what tensors leave stays reserved until `empty_cache`."""

    def __init__(self) -> None:
        self.reserved = 0
        self.at_begin: list[int] = []
        """What was reserved when each window began."""
        self._decoders: list[weakref.ref[Decoder]] = []

    def hold(self, decoder: Decoder) -> None:
        self._decoders.append(weakref.ref(decoder))
        self.use(0)

    def use(self, temporary: int) -> None:
        """Let work need so many bytes beside the caches."""
        self.reserved = max(self.reserved, self._held() + temporary)

    def empty_cache(self) -> None:
        self.reserved = self._held()

    def _held(self) -> int:
        alive = [each() for each in self._decoders]
        return sum(each.cache.bytes for each in alive if each is not None)

    def memory_allocated(self, device: int) -> int:
        return self.reserved

    max_memory_allocated = max_memory_reserved = memory_allocated

    def reset_peak_memory_stats(self, device: int) -> None:
        self.at_begin.append(self.reserved)


class Accelerator(CPU):
    """A CPU with an allocator, and with a queue of work that `synchronize` waits for."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.queued_s = 0.0

    def allocator(self) -> Memory:
        return self.memory

    def synchronize(self) -> None:
        queued_s, self.queued_s = self.queued_s, 0.0
        time.sleep(queued_s)


def rows_of(batches: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> tuple[Accelerator, list[GenerationRow]]:
    """Measure one batch after another on the accelerator."""
    device = Accelerator()

    class OnAccelerator(Decoder):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            device.memory.hold(self)
            device.queued_s += ZEROS_S

        def prefill(self) -> object:  # type: ignore[override]
            device.memory.use(PREFILL_BYTES * len(self.prompts))
            return super().prefill()

    monkeypatch.setattr(measuring, "Decoder", OnAccelerator)
    config = tiny("gqa_1.5B", "device=cpu", "measurement.enabled=false")
    setting = Setting(build(config).eval(), config, device, 1e9, "by hand", repeats=2, least_s=0.0)
    return device, [measure(setting, Case(9, batch, 3))[0] for batch in batches]


def test_a_window_holds_no_memory_of_earlier_rows_or_of_the_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    device, (eight, one) = rows_of((8, 1), monkeypatch)
    assert eight.cache_bytes is not None
    assert one.cache_bytes is not None
    assert device.memory.at_begin == [
        8 * (eight.cache_bytes + PREFILL_BYTES),
        8 * eight.cache_bytes,
        one.cache_bytes + PREFILL_BYTES,
        one.cache_bytes,
    ]


def test_the_prefill_time_excludes_zeroing_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    _, [row] = rows_of((1,), monkeypatch)
    assert row.prefill is not None
    assert row.prefill.time_s is not None
    assert row.ttft_s is not None
    assert row.ttft_s - row.prefill.time_s > 0.9 * ZEROS_S


def test_a_cache_is_freed_with_its_decoder() -> None:
    decoder = Decoder(build(tiny("gqa_1.5B")).eval(), [[1, 2]], 2)
    gone = weakref.ref(decoder)
    del decoder
    assert gone() is None


def test_consecutive_batches_hold_one_cache_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Decoder]] = []
    alive: list[int] = []

    class Counted(Decoder):
        def __init__(self, *given: object) -> None:
            alive.append(sum(each() is not None for each in made))
            super().__init__(*given)  # type: ignore[arg-type]
            made.append(weakref.ref(self))

    monkeypatch.setattr(generating, "Decoder", Counted)
    model = build(tiny("gqa_1.5B")).eval()
    for _ in generating.generate(model, [[1, 2], [3, 4], [5, 6]], Sampling(), 2, stop=(), batch=1):
        pass
    assert alive == [0, 0, 0]
