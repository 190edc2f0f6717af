"""What a layer of Gated DeltaNet costs on a CPU: how its time grows, and its time beside transformers' class.

    python tests/benchmarks/recurrent_cost.py [--rounds 20] [--write]

One layer of the 50M with its projections, forward and backward, float32, one thread, one sequence; the layer of
transformers' Qwen3.5 in torch, of the same weights, in turn with ours. Times are those of the processor, which other
processes do not lengthen much. It takes about three minutes.
Exit code 1: time grows faster than S^1.1; at 2,048 tokens ours takes more than 1.1 times transformers' time; more
operations follow one another than a sixteenth of the tokens; or the rule as a loop over tokens, in place of ours, is
within one of the last two bounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from attention_scaling import configured, exponent, layer, measure
from support.longest_chain import longest_chain
from support.measured import Figure, options, report
from support.single_rank import world_of_one_rank
from window_cost import cpu_seconds

RUN, KEYS = "gqa_50M", ("model.attention.kind=gdn", "model.position.kind=none")
SEQUENCES = (2048, 4096, 8192, 16_384)
COMPARED_AT = SEQUENCES[0]
MOST_EXPONENT, MOST_RATIO, MOST_CHAIN = 1.1, 1.1, 1 / 16
WARMUP, ROUNDS_OF_THE_LOOP = 2, 3

Side = Callable[[], torch.Tensor]
"""The output [S, 1, H] of one side's layer."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--measure", type=int, metavar="SEQUENCE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(RUN, arguments.measure, 1, KEYS, cpu_seconds)))
        return
    times_s = {length: in_a_process(length) for length in SEQUENCES}
    figures = {f"time {each}": Figure(f"time at {each:,} tokens", time_s, "s") for each, time_s in times_s.items()}
    figures["exponent"] = Figure("time grows as S^a: a", exponent(times_s))
    figures |= beside_transformers(arguments.rounds)
    conditions = "one layer of the 50M (width 512; 4 heads, keys of 64, values of 128) with its projections, forward "
    conditions += "and backward, float32, one sequence, one thread's processor time; transformers' Qwen3.5 in torch, "
    report(__file__, arguments, figures, f"{conditions}the same weights, {COMPARED_AT:,} tokens, rounds in turn")
    fast, few = (figures[each].value for each in ("ratio", "chain"))
    slow, many = (figures[f"loop {each}"].value for each in ("ratio", "chain"))
    bounds_hold = figures["exponent"].value <= MOST_EXPONENT and fast <= MOST_RATIO and few <= MOST_CHAIN
    sys.exit(not (bounds_hold and slow > MOST_RATIO and many > MOST_CHAIN))


def in_a_process(length: int) -> float:
    """Return the time in s, by a process that holds no memory of another length."""
    command = [sys.executable, __file__, "--measure", str(length)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    time_s: float = json.loads(done.stdout)["time"]
    print(f"{length:,} tokens: {time_s:.3g} s", flush=True)
    return time_s


def beside_transformers(rounds: int) -> dict[str, Figure]:
    """Measure ours, and the rule as a loop over tokens in its place, beside transformers' layer."""
    # It hides fla-core, whose kernels need a GPU, before transformers looks for it.
    from oracles.gdn import EAGER

    [(place, loop)] = EAGER.items()
    torch.set_num_threads(1)
    with world_of_one_rank() as device:
        ours, theirs = sides(device)
        figures = compared("", "ours", ours, theirs, rounds)
        with mock.patch(place, loop):
            return figures | compared("loop ", "a loop over tokens", ours, theirs, ROUNDS_OF_THE_LOOP)


def sides(device: torch.device) -> tuple[Side, Side]:
    """Build our layer and transformers', of the same weights, for the same tokens."""
    from oracles.gdn import qwen3_5_config, renamed
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = configured(RUN, KEYS)
    ours, theirs = layer(config, device), Qwen3_5GatedDeltaNet(qwen3_5_config(config.model), 0)
    place = "decoder.layers.0.self_attention."
    weights = renamed({place + name: each.detach() for name, each in ours.named_parameters()}, config.model)
    theirs.load_state_dict({name.partition("linear_attn.")[2]: each for name, each in weights.items()})
    torch.manual_seed(0)
    hidden = torch.randn(COMPARED_AT, 1, config.model.hidden_size, requires_grad=True)

    def of_transformers() -> torch.Tensor:
        # Without the mode that stands behind torch.cuda's names for Megatron, and slows every call down.
        with torch._C.DisableTorchFunction():
            output: torch.Tensor = theirs(hidden.transpose(0, 1)).transpose(0, 1)
            return output

    return lambda: ours(hidden, attention_mask=None)[0], of_transformers


def compared(key: str, name: str, ours: Side, theirs: Side, rounds: int) -> dict[str, Figure]:
    """Time both sides in each round, in random order, after the rounds of warm-up; count the operations of ours."""
    wanted = theirs()
    torch.testing.assert_close(ours(), wanted, rtol=0, atol=1e-4 * wanted.abs().max().item())
    times_s: dict[Side, list[float]] = {ours: [], theirs: []}
    for _ in range(WARMUP + rounds):
        for side in random.sample([ours, theirs], 2):
            times_s[side].append(cpu_seconds(lambda side=side: side().backward(wanted.detach())))
    pairs = list(zip(times_s[ours][WARMUP:], times_s[theirs][WARMUP:], strict=True))
    medians_s = [statistics.median(each) for each in zip(*pairs, strict=True)]
    print(f"{name}: {medians_s[0]:.3g} s, transformers' {medians_s[1]:.3g} s", flush=True)
    what = f"time at {COMPARED_AT:,} tokens, {name} over transformers'"
    ratios = [our_s / their_s for our_s, their_s in pairs]
    chain = longest_chain(ours()) / COMPARED_AT
    return {
        f"{key}ratio": Figure.with_bootstrap(what, ratios, statistics.geometric_mean),
        f"{key}chain": Figure(f"operations one after another, for each token, {name}", chain, n_of="count"),
    }


if __name__ == "__main__":
    main()
