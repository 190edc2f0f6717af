"""Time to compute a prompt and time per new token, ours against transformers', on this machine's CPU.

The same model, prompts, dtype and threads; greedy; transformers' `generate` with its static cache; rounds of both in
turn.

    python3 tests/benchmarks/decode_vs_transformers.py [--rounds 10] [--threads 2] [--batch 1 8] [--write]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.measured import Figure, options, report
from support.single_rank import world_of_one_rank

from efficientbench.config.load import resolve

SHAPE = [
    "model.layers=6",
    "model.hidden_size=384",
    "model.heads=6",
    "model.head_dim=64",
    "model.attention.query_groups=2",
    "model.ffn_hidden_size=1536",
    "model.vocab_size=32000",
    "training.dtype=fp32",
]
PROMPT_TOKENS, NEW_TOKENS = 1024, 33
WARMUP_ROUNDS = 2


@dataclass
class Clock:
    """When each new token was chosen."""

    began_s: float = field(default_factory=time.perf_counter)
    times_s: list[float] = field(default_factory=list)

    def __call__(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Note the time, as a logits processor of transformers."""
        self.times_s.append(time.perf_counter())
        return scores

    @property
    def prefill_s(self) -> float:
        return self.times_s[0] - self.began_s

    @property
    def token_s(self) -> float:
        return (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)


Side = Callable[[], Clock]


def main() -> None:
    """Run the comparison and print the paired ratios with their 95 % intervals."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures: dict[str, Figure] = {}
    with world_of_one_rank():
        for batch in arguments.batch:
            figures |= compare(*build(batch), batch, arguments.rounds)
    conditions = (
        f"fp32, {arguments.threads} threads on both sides, {PROMPT_TOKENS:,} tokens and {NEW_TOKENS - 1} more, rounds "
        f"in turn; {', '.join(SHAPE)}"
    )
    report(__file__, arguments, figures, conditions)


def compare(ours: Side, theirs: Side, batch: int, rounds: int) -> dict[str, Figure]:
    """Time both sides in each round, in random order, after the rounds of warm-up; return the paired ratios."""
    clocks: dict[Side, list[Clock]] = {ours: [], theirs: []}
    for number in range(WARMUP_ROUNDS + rounds):
        for side in random.sample([ours, theirs], 2):
            clock = side()
            assert len(clock.times_s) == NEW_TOKENS
            if number >= WARMUP_ROUNDS:
                clocks[side].append(clock)
    figures = {}
    for key, what in (("prefill_s", "prefill"), ("token_s", "time of a new token")):
        pairs = [(getattr(our, key), getattr(their, key)) for our, their in zip(*clocks.values(), strict=True)]
        medians = [statistics.median(each) * 1e3 for each in zip(*pairs, strict=True)]
        print(f"batch {batch}, {what}: ours {medians[0]:.2f} ms, transformers {medians[1]:.2f} ms", flush=True)
        figures[f"{key.removesuffix('_s')} batch_{batch}"] = Figure.with_bootstrap(
            f"{what}, batch {batch}, ours over transformers'", [a / b for a, b in pairs], statistics.geometric_mean
        )
    return figures


def build(batch: int) -> tuple[Side, Side]:
    """Both sides' generation of the same prompts by the same weights."""
    from oracles.oracle import weights_of
    from oracles.qwen2 import same_weights

    from efficientbench.generation.generate import generate
    from efficientbench.generation.sampling import Sampling
    from efficientbench.model.gpt import build_stages

    config = resolve("gqa_1.5B", smoke=True, overrides=SHAPE)
    [model] = build_stages(config, torch.device("cpu"))
    model.eval()
    qwen2 = same_weights(weights_of(model), config.model).eval()
    qwen2.generation_config.eos_token_id = None
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(config.model.vocab_size, (batch, PROMPT_TOKENS), generator=generator)

    def ours() -> Clock:
        clock = Clock()
        for _ in generate(model, prompts.tolist(), Sampling(), NEW_TOKENS, batch=batch):
            clock.times_s.append(time.perf_counter())
        return clock

    def theirs() -> Clock:
        clock = Clock()
        # Without the mode that stands behind torch.cuda's names for Megatron, and slows every call down.
        with torch._C.DisableTorchFunction():
            qwen2.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                use_cache=True,
                cache_implementation="static",
                logits_processor=[clock],
            )
        return clock

    return ours, theirs


if __name__ == "__main__":
    main()
