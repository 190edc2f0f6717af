"""What recurrent layers cost on a CPU: how their time grows, and their time beside transformers' classes in torch.

    python tests/benchmarks/recurrent_cost.py [--rounds 10] [--kinds gdn mamba2 kda] [--write]

One layer of the 50M with its projections, forward and backward, float32, one thread, one sequence; transformers' layer
of the same weights in turn with ours. Times are those of the processor, which other processes do not lengthen much. For
the growth the C library keeps freed memory: it gives blocks above 32 MiB back, which long sequences alone have, and the
system's fresh pages would be measured. What that costs is measured once. It takes about fifteen minutes.
Exit code 1: time grows faster than S^1.1; at 2,048 tokens ours takes more than 1.1 times transformers' time; more
operations follow one another than a sixteenth of the tokens; or the rule as a loop over tokens, in place of ours, has
as few, or takes at most 1.1 times the faster one's time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from attention_scaling import configured, exponent, layer, measure
from support.longest_chain import longest_chain
from support.measured import Figure, options, report
from support.single_rank import world_of_one_rank
from window_cost import cpu_seconds

RUN = "gqa_50M"


@dataclass(frozen=True)
class Theirs:
    """The class of transformers that computes a kind of layer."""

    name: str
    """The class, in the module of its model's name."""
    model: str
    configuration: str
    """The function of `oracles.<kind>` that states our model by transformers' names."""
    place: str
    """Where the class stands in a layer of its model."""


KINDS = {
    "gdn": Theirs("Qwen3_5GatedDeltaNet", "qwen3_5", "qwen3_5_config", "linear_attn."),
    "mamba2": Theirs("BambaMixer", "bamba", "bamba_config", "mamba."),
    "kda": Theirs("KimiLinearDeltaAttention", "kimi_linear", "kimi_linear_config", "self_attn."),
}
SEQUENCES = (2048, 4096, 8192, 16_384)
COMPARED_AT = SEQUENCES[0]
KEEPS_MEMORY = {f"MALLOC_{name}_THRESHOLD_": str(2**33) for name in ("MMAP", "TRIM")}
"""The environment in which glibc keeps freed memory."""
MOST_EXPONENT, MOST_RATIO, MOST_CHAIN = 1.1, 1.1, 1 / 16
WARMUP, ROUNDS_OF_THE_LOOP = 1, 3

Side = Callable[[], torch.Tensor]
"""The output [S, 1, H] of one side's layer."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "SEQUENCE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, sequence = arguments.measure
        print(json.dumps(measure(RUN, int(sequence), 1, keys(kind), cpu_seconds)))
        return
    figures: dict[str, Figure] = {}
    for kind in arguments.kinds:
        times_s = {length: in_a_process(kind, length, KEEPS_MEMORY) for length in SEQUENCES}
        for length, time_s in times_s.items():
            figures[f"{kind} time {length}"] = Figure(f"{kind}: time at {length:,} tokens", time_s, "s")
        fresh = in_a_process(kind, SEQUENCES[-1], {}) / times_s[SEQUENCES[-1]]
        what = f"{kind}: time at {SEQUENCES[-1]:,} tokens with memory given back, over that"
        figures[f"{kind} fresh"] = Figure(what, fresh)
        figures[f"{kind} exponent"] = Figure(f"{kind}: time grows as S^a: a", exponent(times_s))
        figures |= {f"{kind} {key}": each for key, each in beside_transformers(kind, arguments.rounds).items()}
    conditions = "one layer of the 50M (width 512) with its projections, forward and backward, float32, one sequence, "
    conditions += "one thread's processor time; transformers' classes (Qwen3.5, Bamba, Kimi Linear) in torch, the same "
    report(__file__, arguments, figures, f"{conditions}weights, {COMPARED_AT:,} tokens, rounds in turn")
    sys.exit(sum(not bounds_hold(kind, figures) for kind in arguments.kinds) > 0)


def bounds_hold(kind: str, figures: dict[str, Figure]) -> bool:
    """Return whether a kind's figures are within the bounds and those of a loop over tokens are not."""
    fast, few, slow, many = (figures[f"{kind} {each}"].value for each in ("ratio", "chain", "loop ratio", "loop chain"))
    within = figures[f"{kind} exponent"].value <= MOST_EXPONENT and fast <= MOST_RATIO and few <= MOST_CHAIN
    hold = within and slow > MOST_RATIO * min(fast, 1) and many > MOST_CHAIN
    print(f"{kind}: the bounds {'hold' if hold else 'are exceeded'}")
    return hold


def keys(kind: str) -> tuple[str, ...]:
    """Return the overrides of a run of one kind of layer."""
    return (f"model.attention.kind={kind}", "model.position.kind=none")


def in_a_process(kind: str, length: int, environment: dict[str, str]) -> float:
    """Return the time in s, by a process that holds no memory of another length."""
    command = [sys.executable, __file__, "--measure", kind, str(length)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    time_s: float = json.loads(done.stdout)["time"]
    print(f"{kind}, {length:,} tokens: {time_s:.3g} s", flush=True)
    return time_s


def beside_transformers(kind: str, rounds: int) -> dict[str, Figure]:
    """Measure ours, and the rule as a loop over tokens in its place, beside transformers' layer."""
    # It hides fla-core, whose kernels need a GPU, before transformers looks for it.
    [(place, loop)] = importlib.import_module(f"oracles.{kind}").EAGER.items()
    torch.set_num_threads(1)
    with world_of_one_rank() as device:
        ours, theirs = sides(kind, device)
        figures = compared(f"{kind}: ", "ours", ours, theirs, rounds)
        with mock.patch(place, loop):
            in_loop = compared(f"{kind}: ", "a loop over tokens", ours, theirs, ROUNDS_OF_THE_LOOP)
    return figures | {f"loop {key}": each for key, each in in_loop.items()}


def sides(kind: str, device: torch.device) -> tuple[Side, Side]:
    """Build our layer and transformers', of the same weights, for the same tokens."""
    oracle, their = importlib.import_module(f"oracles.{kind}"), KINDS[kind]
    module = importlib.import_module(f"transformers.models.{their.model}.modeling_{their.model}")
    config = configured(RUN, keys(kind))
    settings = getattr(oracle, their.configuration)(config.model)
    if kind == "mamba2":
        settings.mamba_chunk_size = module.BambaConfig().mamba_chunk_size  # the oracle's is small, for another test
    ours, theirs = layer(config, device), getattr(module, their.name)(settings, 0)
    place = "decoder.layers.0.self_attention."
    weights = oracle.renamed({place + name: each.detach() for name, each in ours.named_parameters()}, config.model)
    theirs.load_state_dict({name.partition(their.place)[2]: each for name, each in weights.items()})
    torch.manual_seed(0)
    hidden = torch.randn(COMPARED_AT, 1, config.model.hidden_size, requires_grad=True)

    def of_transformers() -> torch.Tensor:
        # Without the mode that stands behind torch.cuda's names for Megatron, and slows every call down.
        with torch._C.DisableTorchFunction():
            output: torch.Tensor = theirs(hidden.transpose(0, 1)).transpose(0, 1)
            return output

    return lambda: ours(hidden, attention_mask=None)[0], of_transformers


def compared(prefix: str, name: str, ours: Side, theirs: Side, rounds: int) -> dict[str, Figure]:
    """Time both sides in each round, in random order, after the rounds of warm-up; count the operations of ours."""
    wanted = theirs()
    torch.testing.assert_close(ours(), wanted, rtol=0, atol=1e-4 * wanted.abs().max().item())
    times_s: dict[Side, list[float]] = {ours: [], theirs: []}
    for _ in range(WARMUP + rounds):
        for side in random.sample([ours, theirs], 2):
            times_s[side].append(cpu_seconds(lambda side=side: side().backward(wanted.detach())))
    pairs = list(zip(times_s[ours][WARMUP:], times_s[theirs][WARMUP:], strict=True))
    medians_s = [statistics.median(each) for each in zip(*pairs, strict=True)]
    print(f"{prefix}{name}: {medians_s[0]:.3g} s, transformers' {medians_s[1]:.3g} s", flush=True)
    what = f"{prefix}time at {COMPARED_AT:,} tokens, {name} over transformers'"
    ratios = [our_s / their_s for our_s, their_s in pairs]
    chain = longest_chain(ours()) / COMPARED_AT
    return {
        "ratio": Figure.with_bootstrap(what, ratios, statistics.geometric_mean),
        "chain": Figure(f"{prefix}operations one after another, for each token, {name}", chain, n_of="count"),
    }


if __name__ == "__main__":
    main()
