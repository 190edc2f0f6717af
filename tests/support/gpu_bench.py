"""Measures configurations on one device until its time is over; each figure is on disk as soon as it is known."""

from __future__ import annotations

import datetime
import gc
import json
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from oracles.qwen2 import qwen2_config
from support.measured import commit
from support.training_steps import Step, our_step, random_tokens, transformers_step
from torch.autograd import DeviceType

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import flops_per_token
from efficientbench.devices.base import Device
from efficientbench.generation.memory import Case
from efficientbench.generation.open_run import in_one_process
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.sensors.hardware import memory_bandwidth, peak_flops
from efficientbench.planning.fitting import check_fits
from efficientbench.planning.plan import make_plan, with_kernels

STEP_SEQUENCES = 8
"""Sequences of a step, but in a toy."""
BASE = ["data.trained_vocab_size=4096", "training.steps=1000", f"training.global_batch_size={STEP_SEQUENCES}"]
WARM_UP_STEPS, LEAST_STEPS, SECONDS = 3, 5, 4.0
KERNELS_SHOWN = 30


@dataclass(frozen=True)
class Speed:
    """One configuration's training; None where not measured, for `reason`. Memory is that of torch's allocator."""

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
    busy_s: float | None = None
    """Time of a profiled step's kernels, of all together."""
    kernels: dict[str, str] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Generation:
    """One configuration's prefill and decoding; None where it could not be measured, for `reason`."""

    name: str
    prompt_tokens: int
    batch: int
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    """Of all rows together."""
    decode_joules_per_token: float | None = None
    bandwidth_utilization: float | None = None
    """Of decoding."""
    cache_bytes_per_token: float | None = None
    reason: str | None = None


class Bench:
    """The figures of one device."""

    def __init__(self, device: Device, torch_device: torch.device, limit_s: float, toy: bool, output: Path) -> None:
        """Begin.

        Args:
            device: what is measured.
            torch_device: the same as torch names it.
            limit_s: when this has passed, no further measurement begins.
            toy: small models and few steps.
            output: where the figures go, as JSON.
        """
        self.device, self.torch_device, self.toy, self.output = device, torch_device, toy, output
        self.about = {"device": device.names()[0], "torch": torch.__version__, "commit": commit(), **device.versions()}
        self.found: dict[str, list[Speed]] = defaultdict(list)
        self.generated: list[Generation] = []
        self._end_s = time.monotonic() + limit_s

    def config(self, name: str, *sizes: str, changes: Sequence[str] = ()) -> RunConfig:
        """Return a run of the matrix with overrides; a toy is the same architecture in small, with sizes of its own."""
        sizes = ("training.global_batch_size=4",) if self.toy else sizes
        return with_kernels(resolve(name, self.toy, [*BASE, *sizes, *changes]), self.device)

    def ours(self, part: str, config: RunConfig, profile: Path | None = None, name: str | None = None) -> None:
        """Measure our training.

        Args:
            part: of the script.
            config: what is trained.
            profile: where a table goes of the kernels in which the time of one step goes; None: nowhere.
            name: of the figure; None: the run's.
        """
        layout = Layout.of(config, devices=1, oversubscribe=True)
        # Without what the driver keeps for a process: the peak beside it is the allocator's, which does not see that.
        plan = make_plan(config, layout, runtime_bytes=0)

        def build() -> tuple[Step, dict[str, Any]]:
            if (capacity_bytes := self.device.memory_capacity_bytes()) is not None:
                check_fits(plan, capacity_bytes, shared=False)
            return self._our_step(config)

        measured = self._tried(lambda: self._training(config, build, profile))
        self._add(part, name or config.name, config, measured | {"estimate_bytes": plan.rank_memory_bytes()})

    def transformers(self, part: str, config: RunConfig, autocast: bool, compiled: bool) -> None:
        """Measure the same architecture by transformers."""
        kind = f"transformers, {'float32 weights and autocast' if autocast else 'weights in the compute dtype'}"
        name = kind + (", torch.compile" if compiled else "")
        build = partial(self._transformers_step, config, autocast, compiled)
        self._add(part, name, config, self._tried(lambda: self._training(config, build, None)))

    def generation(self, config: RunConfig, case: Case) -> None:
        """Measure prefill and decoding of our model with random weights."""
        measured = self._tried(lambda: self._generation(in_one_process(config), case))
        self.generated.append(Generation(config.name, case.prompt_tokens, case.batch, **measured))
        self._write()

    def _our_step(self, config: RunConfig) -> tuple[Step, dict[str, Any]]:
        from efficientbench.model.kernels.names import kernel_names, kernel_reasons

        step, _ = our_step(config, self.torch_device, random_tokens(config, self.torch_device))
        names, reasons = (read(config, self.device.type) for read in (kernel_names, kernel_reasons))
        return step, {"kernels": names | {part: f"{names[part]}; {reason}" for part, reason in reasons.items()}}

    def _transformers_step(self, config: RunConfig, autocast: bool, compiled: bool) -> tuple[Step, dict[str, Any]]:
        from transformers import Qwen2ForCausalLM

        narrow = torch.float32 if autocast or config.training.dtype == "fp32" else torch.bfloat16
        # Drawn on the device: one core takes 10 s for 1.5 billion weights.
        with self.torch_device:
            qwen2 = Qwen2ForCausalLM(qwen2_config(config.model)).to(narrow)
        model = torch.compile(qwen2) if compiled else qwen2
        return transformers_step(model, config, random_tokens(config, self.torch_device), autocast), {}

    def _tried(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `work` measures, else the reason of its failure, which leaves the other figures alone."""
        gc.collect()
        try:
            if time.monotonic() > self._end_s:
                return {"reason": "not measured: the time was over"}
            return work()
        except (torch.OutOfMemoryError, MemoryError):
            return {"reason": "out of memory"}
        except Exception as error:
            # Where it failed, for whoever mends it: the machine may be gone by then.
            traceback.print_exc()
            first_line = str(error).strip().partition("\n")[0]
            return {"reason": f"{type(error).__name__}: {first_line[:200]}"}

    def _add(self, part: str, name: str, config: RunConfig, measured: dict[str, Any]) -> None:
        training = config.training
        self.found[part].append(Speed(name, training.seq_len, training.micro_batch_size, **measured))
        self._write()

    def _write(self) -> None:
        # At once: whatever ends the script, the figures so far are there.
        parts = {key: [asdict(each) for each in found] for key, found in self.found.items()}
        today = datetime.date.today().isoformat()
        generated = [asdict(each) for each in self.generated]
        content = {"about": self.about, "date": today, **parts, "generation": generated}
        write_whole(self.output, json.dumps(content, indent=2) + "\n")

    def _training(
        self, config: RunConfig, build: Callable[[], tuple[Step, dict[str, Any]]], profile: Path | None
    ) -> dict[str, Any]:
        # A kernel that was compiled for one shape would be made again for all shapes at once, and be slower.
        torch._dynamo.reset()
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
            table, figures["busy_s"] = self._kernels_of(step)
            write_whole(profile, table + "\n")
        flops = flops_per_token(config.model, training.seq_len, training.recompute)
        peak, _ = peak_flops(self.device.names()[0], training.dtype)
        return figures | {
            "tokens_per_s": rate,
            "mfu": flops.training * rate / peak if peak else None,
            "mfu_full_square": flops.training_full_square * rate / peak if peak else None,
            "allocated_bytes": allocator and int(allocator.max_memory_allocated()),
            "reserved_bytes": allocator and int(allocator.max_memory_reserved()),
        }

    def _kernels_of(self, step: Step) -> tuple[str, float | None]:
        """Return tables of one step, by the host's time and by the device's, and the time of its kernels, s."""
        with torch.profiler.profile() as profiler:
            step()
            self.device.synchronize()
        found = profiler.key_averages()
        orders = ["self_cpu_time_total", *(["self_device_time_total"] if self.device.allocator() is not None else [])]
        tables = (found.table(sort_by=order, row_limit=KERNELS_SHOWN, max_name_column_width=90) for order in orders)
        kernels_us = sum(each.self_device_time_total for each in found if each.device_type != DeviceType.CPU)
        return "\n\n".join(tables), kernels_us / 1e6 or None

    def _step_s(self, step: Step) -> float:
        self.device.synchronize()
        begin_s, steps = time.perf_counter(), 0
        while steps < LEAST_STEPS or time.perf_counter() - begin_s < (0.2 if self.toy else SECONDS):
            step()
            steps += 1
        self.device.synchronize()
        return (time.perf_counter() - begin_s) / steps

    def _generation(self, config: RunConfig, case: Case) -> dict[str, Any]:
        from efficientbench.generation.measuring.measure import Setting, measure
        from efficientbench.model.gpt import build_stages

        [model] = build_stages(config, self.torch_device)
        bandwidth = memory_bandwidth(self.device.names()[0])
        repeats = {"repeats": 2, "least_s": 0.0} if self.toy else {}
        row, _ = measure(Setting(model.eval(), config, self.device, *bandwidth, **repeats), case)
        assert row.prefill is not None
        assert row.decode is not None
        return {
            "prefill_tokens_per_s": row.prefill.tokens_per_s,
            "decode_tokens_per_s": row.decode.tokens_per_s,
            "decode_joules_per_token": row.decode.energy_j_per_token,
            "bandwidth_utilization": row.bandwidth_utilization,
            "cache_bytes_per_token": row.cache_bytes_per_token,
        }
