"""Published speeds of training runs, as the planner can state them: `shared/data/public_runs/speeds.csv`.

A row is stated if its dtype is bf16, its device is in the table of devices, and its model and layout are a
configuration that the planner accepts. Every other row has the reason why it is not. Nothing here reads a speed to
decide.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from support.repository import ROOT

from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.memory import memory_by_stage
from efficientbench.metrics.sensors.hardware import DeviceRates, device_rates
from efficientbench.planning.cluster_plan import accelerator, layout_of_world
from efficientbench.planning.plan import with_kernels

SPEEDS = ROOT.parent / "shared" / "data" / "public_runs" / "speeds.csv"
FIT, HELD_OUT = "fit", "held out"

Row = Mapping[str, str]


@dataclass(frozen=True)
class Machine:
    """How the table of devices names a published device."""

    device: str
    family: str
    """The devices that are alike: rows are split within a family, and have efficiencies in common."""
    per_node: int = 8
    """Devices that their fastest links join."""


_910B = Machine("Ascend 910B1", "Ascend 910B")
"""The sources name no SKU; 910B1 is the row whose 354 TFLOP/s other public code takes for any 910B."""
MACHINES = {
    "a100_40gb": Machine("A100 40GB", "A100"),
    "a100_80gb": Machine("A100 80GB SXM", "A100"),
    "h100_80gb": Machine("H100 SXM", "H100"),
    "DGX-H100": Machine("H100 SXM", "H100"),
    "H100 80GB": Machine("H100 SXM", "H100"),
    "H100": Machine("H100 SXM", "H100"),
    "DGX-B200": Machine("B200", "B200"),
    "DGX-B300": Machine("B300", "B200"),
    # Of the 72 that NVLink joins these runs take 64.
    "DGX-GB200": Machine("GB200", "B200", 64),
    "DGX-GB300": Machine("GB300", "B200", 64),
    "Atlas 900 A2 PODc": _910B,
}
NO_MACHINE = {
    "Atlas 900 A3 SuperPoD": "whether the source counts a die or a package of two as a device is not settled",
    "NVIDIA H100 96GB HBM2e (500W limit)": "an H100 with HBM2e and a limit of 500 W is not in the table of devices",
    "NVIDIA B200 (power limited)": "a B200 with a limit of its power is not in the table of devices",
    "NVIDIA GB200": "the source says 256 devices, and 512",
    "": "the source names no device",
}

GPT_OSS = (
    *("model.head_dim=64", "model.moe.experts=128", "model.moe.top_k=4", "model.attention.qkv_bias=true"),
    *("model.attention.sinks=true", "model.pattern=[swa,own]", "model.kinds.swa.attention.window=128"),
)
QWEN3_30B = (
    *("model.head_dim=128", "model.ffn_hidden_size=768", "model.moe.experts=128", "model.moe.top_k=8"),
    *("model.qk_norm=true", "model.attention.qkv_bias=false"),
)
TIED, BIAS, NO_BIAS = "model.tied=true", "model.attention.qkv_bias=true", "model.attention.qkv_bias=false"
UNGATED = "model.activation=relu2"
"""Two matrices of the same shapes as those of a layer with GELU."""

MODELS: dict[str, tuple[tuple[str, ...], str]] = {
    "MPT": ((TIED, NO_BIAS, UNGATED, "model.position.kind=learnable_absolute"), ""),
    "GPT OSS 120B": (GPT_OSS, "transformers 5.23: GptOssConfig (head_dim, sliding_window, layer_types, sinks)"),
    "Qwen3 30B": (QWEN3_30B, "transformers 5.23: Qwen3MoeConfig; experts and their width as the row's remarks"),
    "Aquila 7B": ((NO_BIAS, "model.vocab_size=100008"), "BAAI/AquilaChat-7B config.json (vocabulary)"),
    "Aquila2 34B": ((NO_BIAS, "model.vocab_size=100008"), "BAAI/Aquila2-34B config.json (vocabulary)"),
    "Baichuan2 7B": ((NO_BIAS, "model.vocab_size=125696"), "baichuan-inc/Baichuan2-7B-Base config.json (vocabulary)"),
    "Bloom": (
        (TIED, BIAS, UNGATED, "model.position.kind=alibi", "model.ffn_hidden_size=16384", "model.vocab_size=250880"),
        "transformers 5.23: BloomConfig (four times the width; vocabulary)",
    ),
    "InternLM 7B": ((BIAS, "model.vocab_size=103168"), "internlm/internlm-7b config.json (vocabulary, bias)"),
    "Yi 34B": ((NO_BIAS, "model.vocab_size=64000"), "01-ai/Yi-34B config.json (vocabulary)"),
    "LLaMA2": ((NO_BIAS, "model.vocab_size=32000"), "transformers 5.23: LlamaConfig (vocabulary)"),
    "Mistral 7B": ((NO_BIAS, "model.vocab_size=32000"), "transformers 5.23: MistralConfig (vocabulary)"),
    "Qwen 14B": ((BIAS, "model.vocab_size=152064"), "Qwen/Qwen-14B config.json (vocabulary)"),
    "Gemma 7B": ((TIED, NO_BIAS, "model.head_dim=256"), "transformers 5.23: GemmaConfig (head_dim)"),
    "Qwen1.5 0.5B": ((TIED, BIAS), "Qwen/Qwen1.5-0.5B config.json (tied)"),
    "Qwen2 0.5B": ((TIED, BIAS), "Qwen/Qwen2-0.5B config.json (tied)"),
    "Qwen2 1.5B": ((TIED, BIAS), "Qwen/Qwen2-1.5B config.json (tied)"),
    "Qwen": ((BIAS,), ""),
    "MiniCPM": ((TIED, NO_BIAS), "openbmb/MiniCPM-2B config.json (tied)"),
    "GLM4": ((BIAS,), ""),
}
"""How a model's name begins → keys beside the row's shapes, and where those come from that the row leaves out."""
OTHER_MODELS = {
    "DeepSeek": "the first layers are dense, so that stages are not alike, or 61 layers are in stages of other lengths",
    "Gemma2 27B": "23 layers of a stage are not alike: layers with and without a window alternate",
    "Moonlight": "the row leaves out shapes, and 8 expert ranks are more than its 4 replicas",
}


@dataclass(frozen=True)
class Stated:
    """A published run as the planner states it."""

    row: int
    """Its number in the file of speeds, from 1."""
    source: str
    model: str
    device: str
    family: str
    experts: bool
    world: int
    per_node: int
    keys: tuple[str, ...]
    """The configuration, as keys of a run."""
    shapes: str
    """Where shapes come from that the row leaves out."""
    tokens_per_s: float
    """Published tokens a second of one device."""
    half: str = ""

    @property
    def group(self) -> str:
        """The rows among which it is split: those with experts, or the dense ones of its family."""
        return "experts" if self.experts else f"dense, {self.family}"

    @property
    def digest(self) -> str:
        """Return the hash by which rows are split; rows that state the same run have the same."""
        return hashlib.sha256(json.dumps([self.device, self.world, self.per_node, self.keys]).encode()).hexdigest()

    def plan(self) -> tuple[RunConfig, Layout, DeviceRates]:
        """Return what the planner projects. Raises ConfigError: it refuses the configuration."""
        rates = device_rates(self.device, "bf16")
        config, layout = layout_of_world(resolve("gqa_1.5B", False, self.keys), self.world, self.per_node)
        return with_kernels(config, accelerator(config, rates)), layout, rates


class NotStatedError(Exception):
    """A row cannot be stated; the message is the reason."""


def read(path: Path = SPEEDS) -> tuple[list[Stated], dict[str, list[int]]]:
    """Return the rows that are stated, each in its half, and of the others the reason → their numbers."""
    stated, reasons = [], {}
    with path.open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), start=1):
            try:
                stated.append(state(number, row))
            except NotStatedError as error:
                reasons.setdefault(str(error), []).append(number)
    return halved(stated), reasons


def halved(stated: Sequence[Stated]) -> list[Stated]:
    """Return the rows, each in its half: within each group every other run in the order of the hashes."""
    half: dict[str, str] = {}
    for group in sorted({each.group for each in stated}):
        digests = sorted({each.digest for each in stated if each.group == group})
        half |= {digest: HELD_OUT if place % 2 else FIT for place, digest in enumerate(digests)}
    return [replace(each, half=half[each.digest]) for each in stated]


def state(number: int, row: Row) -> Stated:
    """Return a row as the planner states it. Raises NotStatedError: it cannot."""
    if row["dtype"] != "bf16":
        raise NotStatedError(f"dtype: {row['dtype'].partition(' ')[0] or 'not stated'}")
    machine = MACHINES.get(row["device"])
    if machine is None:
        raise NotStatedError(NO_MACHINE.get(row["device"], f"{row['device']} is not in the table of devices"))
    if "FINE-TUNING" in row["remarks"]:
        raise NotStatedError("a fine-tuning")
    for name, reason in OTHER_MODELS.items():
        if row["model"].startswith(name):
            raise NotStatedError(f"{row['model']}: {reason}")
    tokens_per_s = _tokens_per_s(row)
    keys, shapes = _model(row)
    keys += _run(row)
    experts = any(key.startswith("model.moe") for key in keys)
    stated = Stated(
        *(number, row["source"], row["model"], machine.device, machine.family, experts, int(row["devices"])),
        *(machine.per_node, keys, shapes, tokens_per_s),
    )
    try:
        config, layout, rates = stated.plan()
    except ConfigError as error:
        raise NotStatedError(f"{row['model']}, the planner: {error}") from None
    sharded = "FSDP" in row["dp_or_fsdp"] and "FSDP=0" not in row["dp_or_fsdp"]
    if sharded and _memory(config, layout, rates) > (rates.memory_bytes or 0):
        raise NotStatedError("fits only with fully sharded weights, which the planner does not state")
    return stated


def _model(row: Row) -> tuple[tuple[str, ...], str]:
    """Return the keys of a row's model, and where those come from that the row leaves out."""
    own, shapes = next((found for name, found in MODELS.items() if row["model"].startswith(name)), ((NO_BIAS,), ""))
    given = {key.partition("=")[0] for key in own}
    heads, width = row["heads"], row["hidden_size"]
    if not heads or not width:
        raise NotStatedError(f"{row['model']}: the row leaves out its shapes")
    keys = {
        "model.layers": row["layers"],
        "model.hidden_size": width,
        "model.heads": heads,
        "model.head_dim": str(int(width) // int(heads)),
        "model.attention.query_groups": row["kv_heads"] or heads,
        "model.ffn_hidden_size": row["ffn_hidden_size"],
        "model.vocab_size": row["vocab_size"],
        "model.tied": "false",
    }
    if named := re.search(r"(\d+) experts top-(\d+)", row["remarks"]):
        keys |= {"model.moe.experts": named[1], "model.moe.top_k": named[2]}
    if missing := [key for key, value in keys.items() if not value and key not in given]:
        raise NotStatedError(f"{row['model']}: the row leaves out {', '.join(missing)}")
    if row["model"].startswith("MPT"):
        own = (*own, f"model.position.max_seq_len={row['seq_len']}")
    return (*(f"{key}={value}" for key, value in keys.items() if key not in given), *own), shapes


def _run(row: Row) -> tuple[str, ...]:
    """Return the keys of a row's sequences, batch and layout."""
    needed = ("devices", "seq_len", "global_batch_sequences", "micro_batch")
    if missing := [key for key in needed if not row[key]]:
        raise NotStatedError(f"{row['model']}: the row leaves out {', '.join(missing)}")
    parallel = {key: row[key] or "1" for key in ("tp", "pp", "vpp", "cp", "ep")}
    recompute = row["recompute"].split()[0] if row["recompute"] else "none"
    return (
        *(f"training.seq_len={row['seq_len']}", f"training.global_batch_size={row['global_batch_sequences']}"),
        *(f"training.micro_batch_size={row['micro_batch']}", f"training.recompute={recompute}"),
        *(f"parallel.{key}={value}" for key, value in parallel.items() if value != "1"),
        *(("parallel.sp=true",) if parallel["tp"] != "1" else ()),
    )


def _tokens_per_s(row: Row) -> float:
    """Return the published tokens a second of a device, or those of the step's time that the source prints."""
    if row["tokens_per_s_per_device"]:
        return float(row["tokens_per_s_per_device"])
    step = re.search(r"step ([\d.]+) s ", row["remarks"])
    if step and row["global_batch_sequences"]:
        tokens = int(row["global_batch_sequences"]) * int(row["seq_len"])
        return tokens / float(step[1]) / int(row["devices"])
    raise NotStatedError("neither tokens/s nor a step's time and its tokens")


def _memory(config: RunConfig, layout: Layout, rates: DeviceRates) -> int:
    runtime_bytes = accelerator(config, rates).runtime_bytes
    return max(stage.total for stage in memory_by_stage(config, layout, runtime_bytes))
