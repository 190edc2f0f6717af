"""Plants faults one by one in a copy of the project and runs the tests that must then fail.

    python tests/benchmarks/planted_faults.py [PART OF A NAME ...]

Exit status 0: every fault was caught, by a test that passes without it. "Silent errors" are those of the engine that
give wrong numbers and no exception.
A fault whose line has changed is reported: write its new line here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("efficientbench", "metrics", "data_tools", "launchers")


@dataclass(frozen=True)
class Fault:
    """A mistake in the code, and where it must be noticed."""

    name: str
    changes: list[tuple[str, str]]
    """Text that stands once in the product, and what takes its place."""
    tests: str
    """Files or folders below tests/."""
    selection: str = ""
    """pytest's -k."""


FAULTS = (
    Fault(
        "silent error 1: gradient scaled by the layout",
        [
            (
                "share = 1 / (batch.divisor * self.micro_batches)",
                "share = torch.distributed.get_world_size() / (batch.divisor * self.micro_batches)",
            )
        ],
        "distributed/test_layouts.py",
        "gqa and data",
    ),
    Fault(
        "silent error 2: interleaved pipeline without overlapped sends",
        [
            ("overlap_p2p_comm=parallel.vpp > 1", "overlap_p2p_comm=False"),
            ("batch_p2p_comm=False", "batch_p2p_comm=True"),
        ],
        "distributed/test_silent_errors.py distributed/test_layouts.py",
        "interleaved",
    ),
    Fault(
        "silent error 3: MLA shared key's gradient unreduced",
        [
            ("return copy_to_tensor_model_parallel_region(shared_key, group=self.tp_group)", "return shared_key"),
            (
                "linear.weight.sequence_parallel = config.sequence_parallel",
                "linear.weight.sequence_parallel = False",
            ),
        ],
        "distributed/test_silent_errors.py distributed/test_layouts.py",
        "shared_key or (equals and mla)",
    ),
    Fault(
        "silent error 4: _reduce of a non-contiguous input",
        [("return _reduce(input_.contiguous(), group)", "return _reduce(input_, group)")],
        "distributed/test_silent_errors.py",
    ),
    Fault(
        "silent error 5: expert tensor parallelism 1 with EP 1",
        [("return self.tp if self.ep == 1 else 1", "return 1")],
        "distributed/test_silent_errors.py distributed/test_layouts.py",
        "experts or moe",
    ),
    Fault(
        "silent error 6: one step tensor for all parameters",
        [
            (
                "torch.tensor(updates, dtype=torch.float32, device=device)",
                'globals().setdefault("shared", torch.tensor(updates))',
            )
        ],
        "distributed/test_resume.py",
    ),
    Fault(
        "silent error 7: reported loss divided by the schedule",
        [("_sums(loss / share, batch.targets)", "_sums(loss / share / self.micro_batches, batch.targets)")],
        "distributed/test_silent_errors.py",
    ),
    Fault(
        "silent error 8: initial weights differ by layout",
        [("start = min(tp_rank * size, full.shape[dim])", "start = min(0 * size, full.shape[dim])")],
        "distributed/test_silent_errors.py",
        "weights",
    ),
    Fault(
        "silent error 9: norms and biases decay",
        [('group["weight_decay"] = weight_decay * group["wd_mult"]', 'group["weight_decay"] = weight_decay')],
        "unit/training/update/test_optimizer.py",
    ),
    Fault(
        "overlap a: no gradient for a weight whose gradient was added to main_grad",
        [("return torch.empty_like(parameter)", "return None")],
        "distributed/test_layouts.py",
        "moe and expert",
    ),
    Fault(
        "overlap a: a gradient without values is added to main_grad",
        [
            (
                "parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]\n"
                "    return torch.empty_like(parameter)",
                # Unset memory may hold zeros.
                "return torch.ones_like(parameter)",
            )
        ],
        "distributed/test_layouts.py",
        "moe and expert",
    ),
    Fault(
        "overlap b: the output projection outside its module",
        [
            (
                "self.output_layer(partial(self._output, hidden, labels, loss_mask, looked_up), table)",
                "self._output(\n            hidden, labels, loss_mask, looked_up, "
                "self.output_layer.weight if table is None else table\n        )",
            )
        ],
        "distributed/test_overlap.py",
        "same_weights and tables",
    ),
    Fault(
        "overlap c: gradients are measured after their reduction",
        [
            (
                "self._norms += [torch.linalg.vector_norm(bucket.grad_data) for bucket in group.buckets]\n"
                "        start(force_all_reduce=force_all_reduce)",
                # The wait, since a reduction under way may or may not have reached the buffer.
                "start(force_all_reduce=force_all_reduce)\n"
                "        if group.grad_reduce_handle is not None:\n"
                "            group.grad_reduce_handle.wait()\n"
                "        self._norms += [torch.linalg.vector_norm(bucket.grad_data) for bucket in group.buckets]",
            )
        ],
        "distributed/test_train_step.py",
        "names_step_and_rank and gradients",
    ),
    Fault(
        "overlap d: nobody waits for the weights of the last update",
        [("stage.start_param_sync(force_sync=True)", "pass")],
        "distributed/test_overlap.py",
        "same_weights",
    ),
    Fault(
        "overlap d: a run ends without the weights of its last update",
        [("gather_weights(self.stages)\n        self._emit(TrainingEnded", "self._emit(TrainingEnded")],
        "distributed/test_overlap.py",
        "after_training",
    ),
    Fault(
        "overlap d: a checkpoint without the weights of the last update",
        [("gather_weights(self.stages)\n            self.checkpoints.save", "self.checkpoints.save")],
        "distributed/test_resume.py",
        "exact and DP and bf16",
    ),
    Fault(
        "overlap d: an evaluation without the weights of the last update",
        [("gather_weights(trainer.stages)\n    [stage]", "[stage]")],
        "distributed/test_overlap.py",
        "evaluated",
    ),
    Fault(
        "overlap e: the first stage alone keeps its gradients until they are complete",
        [("unsent if len(unsent) > 1 else unsent[0]", "unsent[0]")],
        "distributed/test_overlap.py",
        "every_stage",
    ),
    Fault(
        "Muon: the matrices of a weight are made orthogonal together",
        [("for part in by_group.split(list(heights), dim=-2):", "for part in [by_group]:")],
        "unit/training/update/test_muon.py",
    ),
    Fault(
        "Muon: a step that is not finite reaches the weights",
        [("new if skip is None else torch.where(skip > 0, kept, new)", "new")],
        "unit/training/update/test_muon.py",
    ),
    Fault(
        "Muon: ranks make their own parts of a matrix orthogonal",
        [("split = split_dim(weight) is not None and tensor_parallel_rank(name)[1] > 1", "split = False")],
        "distributed/test_whole_steps.py",
        "GQA and Muon and TP",
    ),
    Fault(
        "tables of positions decay",
        [("parameter.dim() > 1 and not hasattr(parameter, POSITION_TABLE)", "parameter.dim() > 1")],
        "unit/training/update/test_optimizer.py",
    ),
    Fault(
        "sinusoids larger than tokens",
        [("self.amplitude = init_std", "self.amplitude = 1.0")],
        "numerics/test_positions.py",
    ),
    Fault(
        "MFU: backward counted once",
        [("return 3 * self.forward\n", "return 2 * self.forward\n")],
        "unit/costs numerics/test_every_variant.py",
    ),
    Fault(
        "integral by steps instead of trapezoids",
        [("middle = values[i] + slope * ((low + high) / 2 - left)", "middle = values[i]")],
        "unit/metrics/formulas/test_definitions.py",
    ),
    Fault(
        "energy counter's wrap-around",
        [("self.total_uj += used_uj if used_uj >= 0 else used_uj + self.range_uj", "self.total_uj += max(used_uj, 0)")],
        "unit/metrics/sensors/test_rapl.py",
    ),
    Fault(
        "percentile between the wrong ranks",
        [
            (
                "position = (len(ordered) - 1) * percent / 100",
                "position = min(len(ordered) * percent / 100, len(ordered) - 1)",
            )
        ],
        "unit/metrics/formulas/test_definitions.py",
    ),
    Fault(
        "bits per byte without ln 2",
        [("return mean_token_loss / math.log(2) * tokens", "return mean_token_loss * tokens")],
        "unit/metrics/formulas/test_definitions.py",
    ),
    Fault(
        "step time of the fastest rank",
        [
            (
                "max(step.time_s for step in same) for same in same_steps",
                "min(step.time_s for step in same) for same in same_steps",
            )
        ],
        "unit/metrics/monitoring/test_merge.py",
    ),
    Fault(
        "MFU with one device",
        [('_positive("devices", devices)', '_positive("devices", 1)')],
        "unit/metrics/formulas/test_definitions.py",
    ),
    Fault(
        "NSA window one token wider",
        [("Reach(width=nsa.window))", "Reach(width=nsa.window + 1))")],
        "numerics/test_nsa.py",
    ),
    Fault(
        "GDN: a document begins with the state of the one before",
        [("decay.masked_fill(_fitted(positions == 0, step.dim()), -torch.inf)", "decay.clone()")],
        "numerics/test_documents.py",
        "gdn",
    ),
    Fault(
        "GDN: a document's convolution sees the one before",
        [("earlier.masked_fill((positions < back)[..., None], 0.0)", "earlier.clone()")],
        "numerics/test_documents.py",
        "gdn",
    ),
    Fault(
        "GDN: the carried state does not fade",
        [("torch.baddbmm(carried * factor, keeping", "torch.baddbmm(carried, keeping")],
        "numerics/test_recurrence.py",
        "written",
    ),
    Fault(
        "GDN: decays as differences of sums from the chunk's begin",
        [
            (
                "pairs.masked_fill(~behind, 0.0).cumsum(dim=-3).masked_fill(",
                "(decay.cumsum(dim=-2)[..., None, :] - decay.cumsum(dim=-2)[..., None, :, :]).masked_fill(",
            )
        ],
        "numerics/test_recurrence.py",
        "written",
    ),
    Fault(
        "GDN: the convolution's kept inputs end one token early",
        [
            (
                "latest = chunk.counts[:, None] + torch.arange(kept.shape[1]",
                "latest = chunk.counts[:, None] - 1 + torch.arange(kept.shape[1]",
            )
        ],
        "numerics/test_cache.py",
        "gdn and one_pass",
    ),
    Fault(
        "GDN: ranks keep their own gradient of the norm that all heads share",
        [("copy_to_tensor_model_parallel_region(weight, group=self.tp_group)", "weight.clone()")],
        "distributed/test_layouts.py",
        "gdn and tensor",
    ),
    Fault(
        "KDA: all channels of a head fade alike",
        [
            (
                "decay = decay if by_channel",
                "decay = decay.mean(dim=-1, keepdim=True).expand_as(decay) if by_channel",
            )
        ],
        "numerics/test_recurrence.py",
        "written and channel",
    ),
    Fault(
        "KDA: what earlier blocks hold does not fade within a block",
        [("decay[..., own, :].cumsum(dim=-2).exp()[..., None", "decay[..., own, :].exp()[..., None")],
        "numerics/test_recurrence.py",
        "written and channel",
    ),
    Fault(
        "KDA: the gate of Gated DeltaNet",
        [("return gate.sigmoid()", "return gate * gate.sigmoid()")],
        "numerics/test_recurrent.py",
        "kda and float64",
    ),
    Fault(
        "KDA: ranks keep their own gradient of what gates read",
        [("linear.weight.sequence_parallel = config.sequence_parallel", "linear.weight.sequence_parallel = False")],
        "distributed/test_layouts.py",
        "kda and sequence",
    ),
    Fault(
        "Mamba-2: what is learned is not multiplied by its step",
        [("value * step[..., None], decay, None)", "value, decay, None)")],
        "numerics/test_recurrent.py",
        "mamba2 and float64",
    ),
    Fault(
        "Mamba-2: the norm comes before the gate",
        [
            (
                "gated = parted((out * F.silu(gate)).flatten(2), self.groups)",
                "gated = parted(out.flatten(2), self.groups)",
            ),
            (
                "return normed if self.out_norm is None else normed * self.out_norm",
                "return normed * self.out_norm * F.silu(gate).flatten(2)",
            ),
        ],
        "numerics/test_recurrent.py",
        "mamba2 and float64",
    ),
    Fault(
        "Mamba-2: one norm over all key heads",
        [
            (
                "gated = parted((out * F.silu(gate)).flatten(2), self.groups)",
                "gated = parted((out * F.silu(gate)).flatten(2), 1)",
            )
        ],
        "numerics/test_recurrent.py",
        "mamba2 and float64",
    ),
    Fault(
        "Mamba-2: no value skips the state",
        [("(out + wide(self.D)[:, None] * value)", "(out + 0 * wide(self.D)[:, None] * value)")],
        "numerics/test_recurrent.py",
        "mamba2 and float64",
    ),
    Fault(
        "Mamba-2: the convolution without its bias",
        [("torch.addcmul(bias, latest, weight[:, -1])", "torch.addcmul(0 * bias, latest, weight[:, -1])")],
        "numerics/test_recurrent.py",
        "mamba2 and float64",
    ),
    Fault(
        "Mamba-2: a filled row's state fades",
        [("in strengths], step * _fitted(counts, step.dim())", "in strengths], step")],
        "numerics/test_cache.py",
        "mamba2 and different_lengths",
    ),
    Fault(
        "RoPE turned the wrong way",
        [
            (
                "addcmul_(second, sin, value=1 if back else -1)",
                "addcmul_(second, sin, value=-1 if back else 1)",
            )
        ],
        "numerics/test_attention.py numerics/test_positions.py",
    ),
    Fault(
        "ALiBi slopes",
        [
            (
                "[2 ** (-8 * k / power) for k in range(1, power + 1)]",
                "[2 ** (-4 * k / power) for k in range(1, power + 1)]",
            )
        ],
        "numerics/test_positions.py",
    ),
    Fault(
        "experts without the router's weight",
        [("return (out * weights[:, None]).to(out.dtype), None", "return out, None")],
        "numerics/test_moe.py",
    ),
    Fault(
        "context parallel chunks in another order",
        [("torch.cat([*parts[::2], *parts[::-2]])", "torch.cat([*parts[::2], *parts[1::2]])")],
        "distributed/test_layouts.py",
        "context",
    ),
    Fault(
        "checkpoint metadata may name any class",
        [("if (module, name) not in ALLOWED:", "if False:")],
        "distributed/test_checkpoint_hostile.py",
    ),
    Fault(
        "no end of document",
        [("np.append(self.engine.encode(document), np.uint32(self.eod_id))", "self.engine.encode(document)")],
        "unit/data_tools/tokenizing/test_tokenize.py unit/data_tools/tokenizing/test_corpus.py",
    ),
    Fault(
        "blend without weights",
        [("list(config.data.weights) if len(prefixes) > 1", "[1.0] * len(prefixes) if len(prefixes) > 1")],
        "distributed/test_batches.py",
    ),
    Fault(
        "last failed rank is named",
        [
            (
                "first = min(failures, key=Failure.order)\n        if first.kind",
                "first = max(failures, key=Failure.order)\n        if first.kind",
            )
        ],
        "unit/launchers/processes/test_launch.py",
    ),
    Fault("words in scripts unquoted", [("{shlex.quote(each)}", "{each}")], "unit/launchers/test_scripts.py"),
    Fault(
        "two sweeps run one task",
        [("fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass")],
        "unit/sweep/test_queue.py",
    ),
    Fault(
        "gradient of tied embedding unscaled",
        [("grad_weight.mul_(scale)\n", "\n")],
        "numerics/test_attention.py numerics/test_kernels.py",
    ),
    Fault(
        "a device counted twice",
        [("key = device.info.uuid, device.scope", "key = str(id(device)), device.scope")],
        "unit/metrics/monitoring/test_merge.py",
    ),
    Fault(
        "auxiliary loss of experts lost", [("moe_aux_loss_coeff=", "moe_aux_loss_coeff=0 and ")], "numerics/test_moe.py"
    ),
    Fault(
        "experts' shares of choices not those of the step before",
        [("self._balance(Rows.of(gathered, sums.shape).routed)", "pass")],
        "distributed/test_whole_steps.py",
        "global",
    ),
    Fault(
        "experts' bias lost at a resume",
        [
            (
                "for name, parameter in global_tensors(stage).items():",
                "for name, parameter in global_tensors(stage).items():\n"
                "            if not isinstance(parameter, torch.nn.Parameter):\n"
                "                continue",
            )
        ],
        "distributed/test_resume.py",
        "bias",
    ),
    Fault(
        "experts' bias lost in an evaluation",
        [
            (
                "for name, parameter in global_tensors(model).items():",
                "for name, parameter in global_parameters(model).items():",
            )
        ],
        "numerics/test_experts.py",
        "evaluation",
    ),
    Fault(
        "experts' bias weighs as well as chooses",
        [
            (
                "weights, chosen = super().forward(input, padding_mask)",
                "weights, chosen = super().forward(input, padding_mask)\n"
                "        if self.expert_bias is not None:\n"
                "            weights = weights + chosen * self.expert_bias",
            )
        ],
        "numerics/test_experts.py",
        "weigh or transformers",
    ),
    Fault(
        "experts' bias moves the other way",
        [("torch.sign(choices - self.num_experts * counts)", "torch.sign(self.num_experts * counts - choices)")],
        "distributed/test_expert_bias.py",
        "formula",
    ),
    Fault(
        "experts' shares of choices by one rank alone",
        [("counts = routed.long().sum(dim=0)", "counts = routed.long()[0]")],
        "distributed/test_layouts.py",
        "global and parallel",
    ),
    Fault(
        "experts' shares of choices lost by a checkpoint",
        [("if each.shares is not None:", "if False:")],
        "distributed/test_resume.py",
        "global",
    ),
    Fault(
        "a split of the vocabulary without its neighbour's sums",
        [("all_reduce(largest, op=ReduceOp.MAX, group=group)\n    logits.sub_", "pass\n    logits.sub_")],
        "distributed/test_layouts.py",
        "tensor",
    ),
    Fault(
        "gradients of heads' norms unsummed over tensor-parallel ranks",
        [("qk_layernorm=model.qk_norm,", "qk_layernorm=False,")],
        "distributed/test_layouts.py",
        "every and tensor",
    ),
    Fault(
        "a bound on the logits without its slope",
        [("probabilities.mul_(slope)", "pass")],
        "numerics/test_kernels.py numerics/test_backbone.py",
        "loss",
    ),
    Fault(
        "softmax scale of MLA",
        [("1 / math.sqrt(self.key_dim)", "1 / self.key_dim**0.55")],
        "numerics/test_attention.py",
    ),
    Fault(
        "window off by one",
        [("((key + self.width) * self.stride > room)", "((key + self.width) * self.stride >= room)")],
        "numerics/test_attention_keys.py",
        "formula and windows",
    ),
    Fault(
        "window of the ring off by one",
        [("(keys > own[:, :, None] - window)", "(keys >= own[:, :, None] - window)")],
        "numerics/test_windows.py",
        "ring",
    ),
    Fault(
        "sink in the wrong row",
        [
            (
                "sinks.float()[:, None].expand(-1, scaled.shape[1], -1)",
                "sinks.float()[:, :, None].expand(-1, -1, scaled.shape[1])",
            )
        ],
        "numerics/test_attention_keys.py",
        "gpt_oss",
    ),
    Fault(
        "sink in the wrong row of a batch",
        [("sinks.view(groups, -1).repeat(batch, 1)", "sinks.view(groups, -1).repeat_interleave(batch, 0)")],
        "numerics/test_attention_keys.py",
        "gpt_oss",
    ),
    Fault(
        "NoPE on the wrong layers",
        [("specs[name] = _layer_spec(view, mine)", "specs[name] = _layer_spec(view, position)")],
        "numerics/test_attention_keys.py",
        "formula",
    ),
    Fault(
        "the heads' norm over the gates too",
        [
            (
                "gate[:, :, first : first + heads].flatten(2)",
                "(self.q_layernorm or torch.nn.Identity())(gate)[:, :, first : first + heads].flatten(2)",
            )
        ],
        "numerics/test_attention_keys.py",
        "formula and gate",
    ),
    Fault(
        "the partial rotation's other dimensions are lost",
        [("out[..., :left] = x[..., :left]", "out[..., :left] = x[..., -left:]")],
        "numerics/test_attention_keys.py",
        "formula and gate",
    ),
)


def sources(root: Path) -> dict[Path, str]:
    """Return the product's files and their texts."""
    return {path: path.read_text(encoding="utf-8") for folder in FOLDERS for path in (root / folder).rglob("*.py")}


def misfits(faults: Iterable[Fault], root: Path) -> list[str]:
    """Return, for each text of the faults that does not stand in one file, in how many it stands."""
    texts = sources(root).values()
    counts = {old: sum(old in text for text in texts) for fault in faults for old, _ in fault.changes}
    return [f"{old!r} stands in {count} files" for old, count in counts.items() if count != 1]


def plant(fault: Fault, copy: Path) -> dict[Path, str]:
    """Change the copy; return the files that were changed, with their text before."""
    before: dict[Path, str] = {}
    for old, new in fault.changes:
        path, text = next((path, text) for path, text in sources(copy).items() if old in text)
        before.setdefault(path, text)
        path.write_text(text.replace(old, new), encoding="utf-8")
    return before


def tested(copy: Path, *words: str) -> tuple[int, str]:
    """Run tests in the copy up to the first that fails, slow ones too; return pytest's exit status and last lines."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "proof or not proof", *words]
    # So wide that pytest says why a test failed.
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "300"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, "\n".join(done.stdout.splitlines()[-3:])


def catcher(fault: Fault, copy: Path) -> tuple[str | None, str]:
    """Plant the fault; return the first of its tests that fails, `None` where none does, and pytest's last lines."""
    found = copy / ".pytest_cache" / "v" / "cache" / "lastfailed"
    found.unlink(missing_ok=True)
    before = plant(fault, copy)
    selection = ["-k", fault.selection] if fault.selection else []
    status, told = tested(copy, *(f"tests/{path}" for path in fault.tests.split()), *selection)
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")
    # 1: a test failed. Anything else, as no test found, proves nothing.
    return (next(iter(json.loads(found.read_text(encoding="utf-8")))) if status == 1 else None), told


def main() -> int:
    """Plant the faults whose names have a part that was given, or all; return the exit status."""
    wanted = [fault for fault in FAULTS if not sys.argv[1:] or any(part in fault.name for part in sys.argv[1:])]
    unfit = misfits(wanted, ROOT)
    if unfit:
        print("\n".join(unfit))
        return 1
    catchers = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "output", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        for fault in wanted:
            begin_s = time.monotonic()
            test, told = catcher(fault, copy)
            catchers += [test] if test else []
            verdict = "caught" if test else "MISSED"
            print(f"{verdict} after {time.monotonic() - begin_s:.0f} s: {fault.name}\n{told}\n", flush=True)
        print(f"{len(catchers)} of {len(wanted)} faults caught")
        clean, told = tested(copy, *dict.fromkeys(catchers)) if catchers else (0, "")
    print(f"without a fault, {'NOT ' if clean else ''}each of these tests passes\n{told}")
    return 0 if clean == 0 and len(catchers) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
