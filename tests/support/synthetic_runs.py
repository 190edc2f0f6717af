"""Makes records as a GPU node would write them: power, MFU, experts, timelines, a stopped and a failed run.

The figures are made up: plausible, and consistent with each other, so that reports can be looked at.
"""

from __future__ import annotations

import math
import random
from typing import Any

from support.metrics_parts import make_record

from efficientbench.metrics.formulas.definitions import load_imbalance, percentiles
from efficientbench.metrics.formulas.device_use import Disturbance, Timeline
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import ExpertLoad, Outlier, QualityPoint, Window
from efficientbench.metrics.records.summarize import nothing_measured

SIZES = {"0.5B": 494_032_768, "1.5B": 1_543_714_304, "3B": 3_085_938_688}
# Variant → (time, memory, power, loss) against GQA.
VARIANTS = {
    "mqa": (0.985, 0.95, 0.995, 1.012),
    "gqa": (1.0, 1.0, 1.0, 1.0),
    "mla": (1.35, 1.16, 0.97, 0.972),
    "nsa": (3.9, 1.21, 0.88, 0.995),
    "rope": (1.002, 1.0, 1.001, 1.001),
    "absolute": (0.97, 0.99, 0.996, 1.034),
    "learnable_absolute": (0.972, 0.995, 0.995, 1.026),
    "relative": (1.09, 1.03, 0.985, 1.008),
    "none": (0.962, 0.985, 0.994, 1.041),
    "dense": (0.999, 1.0, 0.999, 0.999),
    "moe": (1.62, 3.1, 0.94, 0.955),
}
PEAK_FLOPS = 989.4e12
STEPS = 400
_PEAKS = {"allocated": 0.8, "reserved": 0.95, "device": 1.02}


def matrix_runs() -> list[RunRecord]:
    """Return one record for each of the 21 runs of the matrix; one of them stopped, one failed."""
    cells = [(variant, size) for variant in ("mqa", "gqa", "mla", "nsa") for size in SIZES]
    cells += [(variant, "1.5B") for variant in ("rope", "absolute", "learnable_absolute", "relative", "none")]
    cells += [("dense", "1.5B"), ("dense", "3B"), ("moe", "0.5Bx8"), ("moe", "1.5Bx8")]
    runs = [gpu_run(variant, size) for variant, size in cells]
    runs[-1] = failed_run("moe", "1.5Bx8")
    runs[3] = runs[3].model_copy(update={"status": "stopped"})
    return runs


def failed_run(variant: str, size: str) -> RunRecord:
    """Return the record of a run that ended before it could measure."""
    reason = "rank 3 ended: CUDA out of memory. Tried to allocate 5.80 GiB"
    absent = nothing_measured(reason)
    facts = {"variant": variant, "size": size, "run": f"{variant}_{size}", "status": "failed", **_FACTS}
    facts["config"] = {"model": _model(variant)}
    return make_record({**facts, **absent.values, "unavailable": absent.unavailable})


_FACTS: dict[str, Any] = {
    "device_name": "NVIDIA H100 80GB HBM3",
    "devices": 4,
    "dp": 4,
    "environment": {
        "python": "3.11.9",
        "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
        "hostname": "node-17",
        "processor": "Intel(R) Xeon(R) Platinum 8480C",
        "cores": 96,
        "memory_limit_bytes": 1_081_101_176_832,
        "packages": {"efficientbench": "0.1.0", "torch": "2.9.0", "megatron-core": "0.16.1", "torch-npu": None},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "uncommitted_changes": False,
        "nvidia_driver": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20",
    },
    "kernels": {"attention": "torch scaled_dot_product_attention (flash)", "norm": "torch rms_norm"},
}


def gpu_run(variant: str, size: str, steps: int = STEPS, seed: int = 1234) -> RunRecord:
    """Return a record of one node of four GPUs, with all that a run can measure there."""
    chance = random.Random(f"{variant}{size}{seed}")
    slow, large, power, loss_factor = VARIANTS[variant]
    backbone = size.partition("x")[0]
    active = SIZES[backbone] * (1.7 if variant == "moe" else 1.0)
    parameters = round(SIZES[backbone] * (5.6 if variant == "moe" else 1.0))
    tokens_per_step = 16 * 2048
    flops = 6.2 * active
    typical_s = flops * tokens_per_step / (4 * PEAK_FLOPS * 0.41) * slow
    times = [typical_s * (1 + 0.012 * abs(chance.gauss(0, 1)) + 0.006 * math.sin(step / 40)) for step in range(steps)]
    times[steps // 3] *= 1.9
    mean_s = sum(times) / steps
    tokens_per_s = tokens_per_step / mean_s
    watts = 612.0 * power * (0.94 if backbone == "0.5B" else 1.0)
    used_gb = (21 + 16 * parameters / 4e9 * 2.1) * large**0.5
    loss = (3.62 - 0.31 * math.log2(SIZES[backbone] / SIZES["0.5B"])) * loss_factor + chance.gauss(0, 0.004)
    energy_j = watts * 4 * mean_s * steps
    mfu = flops * tokens_per_s / (4 * PEAK_FLOPS)
    other = "another process on the device: python (pid 4711)"
    values: dict[str, Any] = {
        **_FACTS,
        **{"variant": variant, "size": size, "run": f"{variant}_{size}", "seed": seed},
        **{"parameters": parameters, "parameters_active": round(active), "flops_per_token": flops},
        **{"tokens": tokens_per_step * steps, "steps_measured": steps, "duration_s": mean_s * steps + 41},
        **{"amu_gb": used_gb, "amu_gb_max": used_gb * 1.01, "amu_fraction": used_gb / 85.9, "pcu": 0.985 - 0.02 * slow},
        **_step_times(times),
        **{"tt_tokens_per_param_s": tokens_per_s / parameters, "tokens_per_s": tokens_per_s},
        **{"tokens_per_s_per_device": tokens_per_s / 4, "aec_w": watts, "power_w_sum": 4 * watts},
        **{"energy_j": energy_j, "energy_j_per_token": energy_j / tokens_per_step / steps, "energy_scope": "gpu"},
        **{"energy_source": "counter", "device_scope": "gpu", "memory_kind": "driver", "memory_idle_gb": 0.6},
        **{"mfu": mfu, "mfu_full_square": mfu * 1.08, "hfu": mfu, "peak_flops": PEAK_FLOPS},
        **{"peak_flops_source": "NVIDIA H100 Tensor Core GPU datasheet"},
        **{
            "peak_memory_allocated_bytes": round(used_gb * 0.8e9),
            "peak_memory_reserved_bytes": round(used_gb * 0.95e9),
        },
        **{"peak_memory_device_bytes": round(used_gb * 1.02e9), "train_loss": loss - 0.05, "validation_loss": loss},
        **{"perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2) / 4.4, "validation_loss_se": 0.006},
        "validation_loss_se_values": 16,
        **{"sample_interval_s": 0.1, "outlier_steps": 1},
        "outliers": [Outlier(step=steps // 3, step_time_s=max(times), times_median=1.9, cause="evaluation")],
        "keys_read_per_query": 1294.6 if variant == "nsa" else 1024.5,
        "dense_keys_per_query": 1024.5,
        "timelines": [_timeline(device, mean_s * steps, used_gb, watts, slow, chance) for device in range(4)],
        "windows": [Window(begin_s=0.0, end_s=mean_s * steps)],
        "disturbances": [Disturbance("GPU-1", times[0], 9 * times[0], other, 0.2)] if variant == "mla" else [],
        "quality_curve": _curve(loss, tokens_per_step, steps, mean_s, watts * 4),
        "config": {
            "training": {"recompute": "none", "seed": seed},
            "model": _model(variant),
            "data": {"path": "fineweb_edu.jsonl", "tokenizer": "qwen2"},
        },
    }
    if variant == "moe":
        values |= _experts(tokens_per_step * steps, chance)
    return make_record(values, "the model has no experts" if variant != "moe" else "not measured in this made-up run")


def _step_times(times: list[float]) -> dict[str, Any]:
    """Return the figures of a run's step times."""
    mean_s = sum(times) / len(times)
    deviation = math.sqrt(sum((time - mean_s) ** 2 for time in times) / (len(times) - 1))
    margin = 2.4 * deviation / math.sqrt(len(times))
    shares = percentiles(times)
    return {
        **{"al_s": mean_s, "al_s_std": deviation, "al_s_cv": deviation / mean_s, "window_s": mean_s * len(times)},
        **{"al_s_ci_low": mean_s - margin, "al_s_ci_high": mean_s + margin},
        **{f"al_s_p{at}": shares[at] for at in (50, 90, 99)},
        "step_time_percentiles_s": shares,
    }


def _experts(tokens: int, chance: random.Random) -> dict[str, Any]:
    """Return the load of eight experts in each of 24 layers, of which each token goes to two."""
    counts = [[round(tokens / 4 * chance.uniform(0.7, 1.4)) for _ in range(8)] for _ in range(24)]
    loads = list(load_imbalance(counts))
    return {
        "experts": ExpertLoad(tokens_per_expert=counts, load_imbalance=loads),
        "expert_load_imbalance": sum(loads) / len(loads),
        "auxiliary_loss": 1.03,
    }


def _model(variant: str) -> dict[str, Any]:
    """Return the part of the configuration in which models differ: gqa, rope and dense are three names of one."""
    attention = {"kind": variant if variant in ("mla", "nsa") else "gqa"} | (
        {"query_groups": 1} if variant == "mqa" else {}
    )
    position = variant if variant in ("absolute", "learnable_absolute", "relative", "none") else "rope"
    moe = {"experts": 8, "top_k": 2} if variant == "moe" else None
    return {"attention": attention, "position": {"kind": position}, "moe": moe}


def _timeline(
    device: int, window_s: float, used_gb: float, watts: float, slow: float, chance: random.Random
) -> Timeline:
    buckets = 500
    bucket_s = (window_s + 20) / buckets
    times = [-15 + (at + 0.5) * bucket_s for at in range(buckets)]
    inside = [0 <= time <= window_s for time in times]
    memory = [0.6 + (used_gb - 0.6) * min((time + 15) / 15, 1.0) for time in times]
    busy = [min(0.985 - 0.02 * slow + chance.gauss(0, 0.015), 1.0) if now else 0.12 for now in inside]
    power = [watts + chance.gauss(0, 9) + 4 * device if now else 128.0 for now in inside]
    return Timeline(
        device=f"GPU-{device}",
        device_name="NVIDIA H100 80GB HBM3",
        scope="gpu",
        bucket_s=bucket_s,
        time_s=times,
        memory_used_gb_mean=list(memory),
        memory_used_gb_max=[value * 1.004 for value in memory],
        utilization_mean=list(busy),
        utilization_max=[min(value + 0.01, 1.0) for value in busy],
        power_w_mean=list(power),
        power_w_max=[value + 14 for value in power],
    )


def _curve(loss: float, tokens_per_step: int, steps: int, step_s: float, watts: float) -> list[QualityPoint]:
    return [
        QualityPoint(
            step=step,
            tokens=step * tokens_per_step,
            loss=loss + 3.1 * math.exp(-3.2 * part / 8) - 3.1 * math.exp(-3.2),
            loss_se=0.006,
            loss_se_values=16,
            measured_tokens=step * tokens_per_step,
            train_s=step * step_s,
            energy_j=step * step_s * watts,
        )
        for part, step in ((part, steps * part // 8) for part in range(1, 9))
    ]
