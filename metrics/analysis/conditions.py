"""The conditions that two runs must share before their figures may be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from efficientbench.basics.counted import number_of
from efficientbench.metrics.analysis.repeats import dotted, flat
from efficientbench.metrics.formulas.device_use import CLOCKS_SET, DeviceConditions, MachineConditions
from efficientbench.metrics.records.record import RunRecord


@dataclass(frozen=True)
class Difference:
    """A condition that two runs do not share."""

    condition: str
    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.condition}: {self.one} against {self.other}"


CODE = "model.code"
"""Where a configuration has the SHA-256 of the code of each kind of variant from outside this project."""

# Part → sections of the model's configuration that choose its kernel: where the sections differ, the kernels may.
_CHOSEN_BY = {"attention": ("model.attention.", "model.position.", "model.pattern", "model.kinds", f"{CODE}.")}
_CHOOSING = tuple(prefix for prefixes in _CHOSEN_BY.values() for prefix in prefixes)


def _tokens(record: RunRecord) -> str:
    if record.finetuning:
        # Examples are counted, since the seed's order of examples decides how many tokens the same steps have.
        return (
            f"{record.steps_measured * record.global_batch_size:,} examples in {record.steps_measured:,} measured steps"
        )
    if record.reinforcement is not None:
        # No share of supervised tokens: the model itself decides how many tokens its answers have.
        return f"{record.tokens:,} of questions, answers and padding in {record.steps_measured:,} measured steps"
    if record.time_limit_s is not None:
        return f"as many as {record.time_limit_s:g} s hold, of a run that sets no length"
    # Rounded to a percent, since each seed packs conversations in another order.
    learned = record.supervised_tokens
    share = "" if learned in (None, record.tokens) else f", {learned / record.tokens:.0%} of them supervised,"
    if record.tokens_trained is None:
        return f"{record.tokens:,}{share} in {record.steps_measured:,} measured steps"
    # All tokens, since a run that was resumed, or that began as a branch, measures its last steps alone.
    warmup = record.section("measurement").get("warmup_steps")
    beyond = f", {number_of(warmup, 'step')} of warm-up" if warmup else ""
    return f"{record.tokens_trained:,}{share} trained on{beyond}"


def _data(record: RunRecord, named: bool = False) -> str:
    """Return what a run read, by its content; `named`: with the names too, which the same content may change."""
    section = record.section("data")
    within = ", attention within documents" if section.get("attention_within_documents") else ""
    read = f"split {section.get('split')}{within}"
    if record.data is None:
        return f"{section.get('path') or 'the embedded sample'}, {read}" if section else "not named"
    sources = " + ".join(
        f"{each.weight:g} {f'{each.source} ' if named else ''}({each.fingerprint[:12]})" for each in record.data
    )
    return f"{sources}, {read}{_questions(record)}"


def _questions(record: RunRecord) -> str:
    """Return the text on the questions that a run learned from by rewards; empty where it learned from text."""
    if record.reinforcement is None:
        return ""
    files = " + ".join(digest[:12] for digest in record.reinforcement.files_sha256)
    return f", questions {files or 'that the task makes'}"


def _layout(record: RunRecord) -> str:
    names = ("tp", "pp", "dp", "ep", "cp", "micro_batch_size")
    parallel = {key: value for key, value in flat(record.section("parallel")).items() if key not in names}
    bucket_size = parallel.pop("bucket_size", None)
    given = {name: getattr(record, name) for name in names} | parallel | {"overlap": _overlaps(record)}
    if given["overlap"] and bucket_size is not None:
        given["bucket_size"] = bucket_size
    given["recompute"] = record.section("training").get("recompute")
    given |= {f"zero.{name}": value for name, value in record.section("zero").items()}
    return ", ".join(f"{name} {value}" for name, value in given.items())


def _overlaps(record: RunRecord) -> bool:
    """Return whether replicas communicated while they computed; False for records that are older than the key."""
    return record.cp * record.dp > 1 and record.section("parallel").get("overlap") is True


def optimizer_of(record: RunRecord) -> str:
    """Return the name of the optimizer of a run."""
    # Records from before there was a choice do not name the optimizer.
    return str(record.section("training").get("optimizer", "adamw"))


def _init(record: RunRecord) -> str:
    if record.finetuning:
        return f"the base model {record.config.get('model')}"
    init = record.section("init")
    if record.branched_after:
        # A trunk has drawn its weights; each seed has its own.
        return f"all state of a trunk after step {record.branched_after}"
    if init.get("run") is None:
        return "random weights"
    # The weights' folder is no part of the text, since it may be moved.
    return f"weights of step {init.get('step')} ({str(init.get('sha256'))[:12]})"


def _limits(record: RunRecord) -> str:
    """Return the limits on the devices' speed and power, each different text once; a host's without such devices."""
    found = [_device_limits(each) for each in record.device_conditions] or [
        _machine_limits(each) for each in record.machine_conditions
    ]
    return "; ".join(dict.fromkeys(found)) or NOT_RECORDED


def _device_limits(conditions: DeviceConditions) -> str:
    own = conditions.settings
    parts = {"limit": (own.power_limit_w, "W"), "cores": (own.clock_max_mhz, "MHz")}
    parts |= {"memory": (own.memory_clock_max_mhz, "MHz")}
    texts = [f"{name} {value:g} {unit}" for name, (value, unit) in parts.items() if value is not None]
    texts += [] if own.ecc is None else [f"ECC {'on' if own.ecc else 'off'}"]
    texts += [] if own.nvlinks is None else [f"{own.nvlinks} NVLinks"]
    # A driver reports that a user has set clocks only as a cause of slowing.
    texts += [CLOCKS_SET] if conditions.slowed_by.get(CLOCKS_SET, 0) >= 0.5 else []
    return ", ".join(texts)


def _machine_limits(machine: MachineConditions) -> str:
    texts = [f"{machine.cores:g} cores"]
    texts += [] if machine.governor is None else [f"governor {machine.governor}"]
    texts += [] if machine.clock_max_mhz is None else [f"{machine.clock_max_mhz:g} MHz"]
    texts += [] if machine.boost is None else [f"boost {'on' if machine.boost else 'off'}"]
    return ", ".join(texts)


def _software(record: RunRecord) -> str:
    """Return the versions of the driver and of the libraries that compute and communicate."""
    packages, versions = (record.environment.get(name) for name in ("packages", "versions"))
    drivers = dict.fromkeys(each.settings.driver for each in record.device_conditions)
    found = {"driver": " and ".join(filter(None, drivers)) or None}
    names = (*_COMPUTING, *_TUNING) if record.finetuning else _COMPUTING
    found |= {key: packages.get(key) for key in names} if isinstance(packages, dict) else {}
    found |= versions if isinstance(versions, dict) else {}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version) or NOT_RECORDED


_COMPUTING = ("torch", "torch-npu", "megatron-core")
"""Packages whose versions decide how fast a run is."""
_TUNING = ("transformers", "trl", "peft", "accelerate", "deepspeed")
"""Further packages whose versions decide how fast a fine-tuning is."""
NOT_RECORDED = "not recorded"


CONDITIONS: dict[str, Callable[[RunRecord], str]] = {
    "device": lambda record: f"{record.devices} × {record.device_name}",
    "dtype": lambda record: record.dtype or NOT_RECORDED,
    "tokens": _tokens,
    "sequence": lambda record: str(record.seq_len),
    "data": _data,
    "init": _init,
    "global_batch": lambda record: str(record.global_batch_size),
    "optimizer": optimizer_of,
    "layout": _layout,
    "limits": _limits,
    "software": _software,
    "energy_scope": lambda record: record.energy_scope or "not measured",
    "formulas": lambda record: record.formula_id,
}
"""Name of a condition → what reads its text from a record. Kernels are one more condition, which needs both records."""

KERNELS = "kernels"


def differences(one: RunRecord, other: RunRecord) -> list[Difference]:
    """Return the conditions in which two runs differ; the model is no condition."""
    shown = CONDITIONS | {"data": partial(_data, named=True)}
    differing = [name for name, read in CONDITIONS.items() if read(one) != read(other)]
    found = [Difference(name, shown[name](one), shown[name](other)) for name in differing]
    return [*found, *_kernel_differences(one, other)]


def _kernel_differences(one: RunRecord, other: RunRecord) -> list[Difference]:
    """Return the parts that should use the same kernel in both runs and do not.

    A model brings the kernels of its own parts: a comparison of MLA with NSA compares their attention kernels too. So a
    part that only one model has is no difference, nor is another kernel where the configuration that chooses it
    differs. A part that fell back on a slower kernel in only one run is always a difference.
    """
    changed = changed_keys(one, other)
    chosen_as = [_kind_of_kernels(record) for record in (one, other)]
    found = [] if chosen_as[0] == chosen_as[1] else [Difference(KERNELS, *chosen_as)]
    for part in sorted({*one.kernels, *other.kernels}):
        names = [record.kernels.get(part) for record in (one, other)]
        fallbacks = [record.fallback_kernels.get(part) for record in (one, other)]
        chosen = part in _CHOSEN_BY and any(key.startswith(_CHOSEN_BY[part]) for key in changed)
        differ = None not in names and names[0] != names[1] and not chosen
        if differ or (fallbacks[0] is None) != (fallbacks[1] is None):
            texts = [_kernel(name, why) for name, why in zip(names, fallbacks, strict=True)]
            found.append(Difference(KERNELS, f"{part}: {texts[0]}", texts[1]))
    return found


def _kind_of_kernels(record: RunRecord) -> str:
    # A library may have a deterministic and a faster kernel of the same name.
    return "deterministic ones" if record.section("training").get("deterministic") is True else "the fastest ones"


def _kernel(name: str | None, why: str | None) -> str:
    return f"{name or 'no such part'}{f' (a fallback: {why})' if why else ''}"


def comparison_key(record: RunRecord) -> str:
    """Return a text that is equal for two runs only if they do not differ, and differ alike from any other run."""
    chosen = {key: value for key, value in flat(record.config).items() if key.startswith(_CHOOSING)}
    texts = [read(record) for read in CONDITIONS.values()]
    return repr((texts, _kind_of_kernels(record), record.kernels, record.fallback_kernels, chosen))


def changed_keys(one: RunRecord, other: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return the configuration's keys whose values differ → both values.

    The code of a variant from outside this project is among them where both models have the variant.
    """
    first, second = dotted(one.config), dotted(other.config)
    keys = dict.fromkeys([*first, *second])
    differing = {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}
    shared = set(map(str, first.values())) & set(map(str, second.values()))
    return {
        key: values
        for key, values in differing.items()
        if not key.startswith(f"{CODE}.") or key.removeprefix(f"{CODE}.") in shared
    }


_SHARED = (
    *("device", "dtype", "sequence", "data", "init", "global_batch", "optimizer", "tokens"),
    *("limits", "software", "formulas"),
)
"""Conditions that a plot's runs must share, besides the layout; each size may have its own micro-batch."""


def group(record: RunRecord, energy: bool = False) -> str:
    """Return a text that is the same for runs whose figures can be compared; with `energy`, their energies too."""
    names = (*_SHARED, "energy_scope") if energy else _SHARED
    return repr((record.smoke, _grid(record), [CONDITIONS[name](record) for name in names]))


def shared_conditions(record: RunRecord, named: bool = False) -> dict[str, str]:
    """Return the conditions that runs of one `group` share, by name, with their texts.

    named: with the names of the data, which differ between runs of a group that read the same content.
    """
    *sizes, overlaps = _grid(record)
    axes = zip(("tp", "pp", "dp", "ep", "cp"), sizes, strict=True)
    layout = ", ".join(f"{axis} {size}" for axis, size in axes) + (", overlapped" if overlaps else "")
    scale = "smoke" if record.smoke else "full size"
    found = {name: CONDITIONS[name](record) for name in _SHARED} | ({"data": _data(record, named)} if named else {})
    return {"scale": scale, "layout": layout} | {name: text for name, text in found.items() if text != NOT_RECORDED}


def _grid(record: RunRecord) -> tuple[int, ...]:
    return record.tp, record.pp, record.dp, record.ep, record.cp, _overlaps(record)
