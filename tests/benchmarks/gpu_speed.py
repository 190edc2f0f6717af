"""How fast training is on one GPU, in one call of under ten minutes.

NOT RUN YET ON A GPU: written where none was at hand. Every figure is of whole optimizer steps on random tokens, waited
for at both ends, with float32 master weights and the kernels that a run of the same configuration would have.

    python3 tests/benchmarks/gpu_speed.py [--parts headline risks ...] [--limit-s 540] [--output speed.json] [--write]
    python3 tests/benchmarks/gpu_speed.py --rehearse    # the same on a CPU with toy models: does the script work?

The parts, those first that say most:

- headline: gqa_1.5B, sequence 2,048, bf16, at micro-batches of 2, 4 and 8 sequences: tokens/s, MFU (causal attention
  halved, and the full square), memory against the plan's estimate, and where a step's time goes; transformers' compiled
  training of the same model; then the first figure once more.
- risks: one figure of each architecture that has kernels of its own: NSA, relative, mixture of experts, MLA.
- lengths: GQA and NSA of 1.5B over sequences of 2,048 to 32,768 tokens: where NSA overtakes GQA.
- transformers: its other three ways to train: weights in bf16 or float32 with autocast, each with torch.compile and
  without.
- matrix: every run of the matrix that fits the card.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.console import Console
from rich.table import Table
from support.measured import Figure, options, report
from support.qwen2 import qwen2_config
from support.single_rank import world_of_one_rank
from support.training_steps import Step, our_step, random_tokens, transformers_step

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import flops_per_token
from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.hardware import peak_flops
from efficientbench.planning.fitting import check_fits
from efficientbench.planning.plan import make_plan, with_kernels

BASE = ["data.trained_vocab_size=4096", "training.steps=1000", "training.global_batch_size=8"]
LENGTHS = (2048, 8192, 32_768)
MICRO_BATCHES = (2, 4, 8)
RISKS = ("nsa_1.5B", "relative_1.5B", "moe_0.5Bx8", "mla_1.5B")

WARM_UP_STEPS, LEAST_STEPS, SECONDS = 3, 5, 4.0
KERNELS_SHOWN = 30


@dataclass(frozen=True)
class Speed:
    """One configuration's figures; None where it could not be measured, for `reason`. Memory is torch's allocator's."""

    name: str
    seq_len: int
    micro_batch_size: int
    tokens_per_s: float | None = None
    mfu: float | None = None
    mfu_full_square: float | None = None
    allocated_bytes: int | None = None
    """Peak of the tensors: what the plan estimates."""
    reserved_bytes: int | None = None
    """Peak of what the allocator holds, with its gaps."""
    estimate_bytes: int | None = None
    kernels: dict[str, str] | None = None
    reason: str | None = None


class Bench:
    """Measures configurations on one device until its time is over; each figure goes to `output` at once."""

    def __init__(self, device: Device, torch_device: torch.device, limit_s: float, toy: bool, output: Path) -> None:
        self.device, self.torch_device, self.toy, self.output = device, torch_device, toy, output
        self.about = {"device": device.names()[0], "torch": torch.__version__, **device.versions()}
        self.found: dict[str, list[Speed]] = defaultdict(list)
        self._end_s = time.monotonic() + limit_s

    def config(self, name: str, *overrides: str) -> RunConfig:
        """Return a run of the matrix; with toys the same architecture in small, at the length that it has there."""
        changes = ["training.global_batch_size=4"] if self.toy else overrides
        return with_kernels(resolve(name, self.toy, [*BASE, *changes]), self.device)

    def ours(self, part: str, config: RunConfig, profile: Path | None = None) -> Speed:
        """Measure our training; with `profile`, write there by kernel where the time of one step goes."""
        layout = Layout.of(config, devices=1, oversubscribe=True)
        # Without what the driver keeps for a process: the peak beside it is the allocator's, which does not see that.
        plan = make_plan(config, layout, runtime_bytes=0)

        def build() -> tuple[Step, dict[str, Any]]:
            if (capacity_bytes := self.device.memory_capacity_bytes()) is not None:
                check_fits(plan, capacity_bytes, shared=False)
            return self._our_step(config)

        return self._measure(part, config.name, config, build, profile, estimate_bytes=plan.rank_memory_bytes())

    def transformers(self, part: str, config: RunConfig, autocast: bool, compiled: bool) -> Speed:
        """Measure the same architecture by transformers."""
        kind = f"transformers, {'float32 weights and autocast' if autocast else 'weights in the compute dtype'}"
        name = kind + (", torch.compile" if compiled else "")
        return self._measure(part, name, config, partial(self._transformers_step, config, autocast, compiled))

    def _our_step(self, config: RunConfig) -> tuple[Step, dict[str, Any]]:
        from efficientbench.model.kernels.names import kernel_names, kernel_reasons

        step, _ = our_step(config, self.torch_device, random_tokens(config, self.torch_device))
        names, reasons = (read(config, self.device.type) for read in (kernel_names, kernel_reasons))
        return step, {"kernels": names | {part: f"{names[part]}; {reason}" for part, reason in reasons.items()}}

    def _transformers_step(self, config: RunConfig, autocast: bool, compiled: bool) -> tuple[Step, dict[str, Any]]:
        from transformers import Qwen2ForCausalLM

        narrow = torch.float32 if autocast or config.training.dtype == "fp32" else torch.bfloat16
        qwen2 = Qwen2ForCausalLM(qwen2_config(config.model)).to(self.torch_device, narrow)
        model = torch.compile(qwen2) if compiled else qwen2
        return transformers_step(model, config, random_tokens(config, self.torch_device), autocast), {}

    def _measure(
        self,
        part: str,
        name: str,
        config: RunConfig,
        build: Callable[[], tuple[Step, dict[str, Any]]],
        profile: Path | None = None,
        **known: Any,
    ) -> Speed:
        """Measure what `build` returns; a failure has its reason in the figure, and leaves the other figures alone."""
        try:
            known |= self._figures(config, build, profile)
        except (torch.OutOfMemoryError, MemoryError):
            known["reason"] = "out of memory"
        except TimeoutError:
            known["reason"] = "not measured: the time was over"
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            known["reason"] = f"{type(error).__name__}: {first_line[:200]}"
        speed = Speed(name, config.training.seq_len, config.training.micro_batch_size, **known)
        self.found[part].append(speed)
        # At once: whatever ends the script, the figures so far are there.
        content = {"about": self.about} | {key: [asdict(each) for each in found] for key, found in self.found.items()}
        write_whole(self.output, json.dumps(content, indent=2) + "\n")
        return speed

    def _figures(
        self, config: RunConfig, build: Callable[[], tuple[Step, dict[str, Any]]], profile: Path | None
    ) -> dict[str, Any]:
        if time.monotonic() > self._end_s:
            raise TimeoutError
        # A kernel that was compiled for one shape would be made again for all shapes at once, and be slower.
        torch._dynamo.reset()
        gc.collect()
        allocator = self.device.allocator()
        step, figures = build()
        for _ in range(WARM_UP_STEPS):
            step()
        if allocator is not None:
            # Without what the choice of kernels has left.
            allocator.empty_cache()
            allocator.reset_peak_memory_stats()
        training = config.training
        rate = training.global_batch_size * training.seq_len / self._step_s(step)
        if profile is not None:
            write_whole(profile, self._kernels_of(step) + "\n")
        flops = flops_per_token(config.model, training.seq_len, training.recompute)
        peak, _ = peak_flops(self.device.names()[0], training.dtype)
        return figures | {
            "tokens_per_s": rate,
            "mfu": flops.training * rate / peak if peak else None,
            "mfu_full_square": flops.training_full_square * rate / peak if peak else None,
            "allocated_bytes": allocator and int(allocator.max_memory_allocated()),
            "reserved_bytes": allocator and int(allocator.max_memory_reserved()),
        }

    def _kernels_of(self, step: Step) -> str:
        """Return a table of one step's kernels, the longest first."""
        with torch.profiler.profile() as profiler:
            step()
            self.device.synchronize()
        order = "self_cpu_time_total" if self.device.allocator() is None else "self_device_time_total"
        return str(profiler.key_averages().table(sort_by=order, row_limit=KERNELS_SHOWN, max_name_column_width=90))

    def _step_s(self, step: Step) -> float:
        self.device.synchronize()
        begin_s, steps = time.perf_counter(), 0
        while steps < LEAST_STEPS or time.perf_counter() - begin_s < (0.2 if self.toy else SECONDS):
            step()
            steps += 1
        self.device.synchronize()
        return (time.perf_counter() - begin_s) / steps


def headline(bench: Bench) -> None:
    """Measure the first figure with its neighbours, transformers at its best, and the first figure again."""
    for size in MICRO_BATCHES:
        config = bench.config("gqa_1.5B", f"training.micro_batch_size={size}")
        bench.ours("headline", config, bench.output.with_suffix(".kernels.txt") if size == MICRO_BATCHES[0] else None)
    first = bench.config("gqa_1.5B", f"training.micro_batch_size={MICRO_BATCHES[0]}")
    bench.transformers("headline", first, autocast=False, compiled=True)
    bench.ours("again", first)


def risks(bench: Bench) -> None:
    """Measure the architectures whose kernels are their own."""
    for name in RISKS:
        bench.ours("risks", bench.config(name, f"training.micro_batch_size={MICRO_BATCHES[0]}"))


def lengths(bench: Bench) -> None:
    """Measure GQA and NSA over the sequence's length, with as many tokens in a step."""
    for length in LENGTHS[:1] if bench.toy else LENGTHS:
        batch = max(1, 16_384 // length)
        words = [f"training.seq_len={length}", "training.micro_batch_size=1", f"training.global_batch_size={batch}"]
        for name in ("gqa_1.5B", "nsa_1.5B"):
            bench.ours("lengths", bench.config(name, *words))


def transformers(bench: Bench) -> None:
    """Measure the ways of transformers that the headline leaves out."""
    first = bench.config("gqa_1.5B", f"training.micro_batch_size={MICRO_BATCHES[0]}")
    for autocast, compiled in ((True, True), (False, False), (True, False)):
        bench.transformers("transformers", first, autocast, compiled)


def matrix(bench: Bench) -> None:
    """Measure every run of the matrix."""
    for run in load_matrix().runs:
        bench.ours("matrix", bench.config(run.name))


PARTS = {each.__name__: each for each in (headline, risks, lengths, transformers, matrix)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure, in this order")
    parser.add_argument("--limit-s", type=float, default=540, help="begin no further measurement after this time")
    parser.add_argument("--output", type=Path, default=Path("gpu_speed.json"))
    parser.add_argument("--rehearse", action="store_true", help="toy models on a CPU")
    arguments = parser.parse_args()
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    device = find_device("cpu" if arguments.rehearse else "cuda")
    with world_of_one_rank(device) as torch_device:
        bench = Bench(device, torch_device, arguments.limit_s, arguments.rehearse, arguments.output)
        for name in arguments.parts:
            PARTS[name](bench)
            show(Console(width=170), name, [*bench.found[name], *(bench.found["again"] if name == "headline" else [])])
    report(__file__, arguments, figures_of(bench.found), "whole optimizer steps on random tokens, one device", device)
    print(f"{bench.about}\n{arguments.output}")


def figures_of(found: Mapping[str, Sequence[Speed]]) -> dict[str, Figure]:
    """Return the figures for the docs."""
    figures = {}
    for each in (each for part in ("headline", "risks", "lengths", "matrix") for each in found.get(part, ())):
        key = f"{each.name}, sequence {each.seq_len:,}, micro-batch {each.micro_batch_size}"
        if each.tokens_per_s is not None:
            figures[f"{key}, tokens/s"] = Figure(f"{key}: throughput", each.tokens_per_s, "tokens/s")
        if each.mfu is not None:
            figures[f"{key}, MFU"] = Figure(f"{key}: MFU", each.mfu * 100, "%")
        if each.allocated_bytes and each.estimate_bytes:
            ratio = each.estimate_bytes / each.allocated_bytes
            figures[f"{key}, memory"] = Figure(f"{key}: the plan's memory estimate over the peak", ratio)
    first = next(iter(found.get("headline", ())), None)
    if first is None or not first.tokens_per_s:
        return figures
    by_transformers = [*found["headline"], *found.get("transformers", ())]
    theirs = [each.tokens_per_s for each in by_transformers if "transformers" in each.name and each.tokens_per_s]
    if theirs:
        what = "gqa_1.5B: tokens/s, ours over the fastest of transformers"
        figures["ratio"] = Figure(what, first.tokens_per_s / max(theirs))
    for again in found.get("again", ()):
        if again.tokens_per_s:
            figures["again"] = Figure("gqa_1.5B once more, over the first", again.tokens_per_s / first.tokens_per_s)
    return figures


def show(console: Console, title: str, speeds: Iterable[Speed]) -> None:
    """Print one table."""
    columns = ("run", "sequence", "micro-batch", "tokens/s", "MFU", "full square", "peak GB", "held GB", "plan GB")
    table = Table(*columns, title=title)
    for each in speeds:
        figures = (
            (each.tokens_per_s, 1, ",.0f"),
            (each.mfu, 1, ".1%"),
            (each.mfu_full_square, 1, ".1%"),
            (each.allocated_bytes, 1e9, ".1f"),
            (each.reserved_bytes, 1e9, ".1f"),
            (each.estimate_bytes, 1e9, ".1f"),
        )
        cells = ["n/a" if value is None else f"{value / unit:{shape}}" for value, unit, shape in figures]
        table.add_row(each.name, str(each.seq_len), str(each.micro_batch_size), each.reason or cells[0], *cells[1:])
    console.print(table)


if __name__ == "__main__":
    main()
