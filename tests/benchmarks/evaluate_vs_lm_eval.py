"""Time to score multiple-choice items, ours against lm-eval's `hf` backend on the export, on this machine's CPU.

The same weights, requests, dtype and threads, and about as many tokens in a batch; rounds of both in turn. With shots
an item's four choices share a long context; without, a short one.

    python3 tests/benchmarks/evaluate_vs_lm_eval.py [--rounds 5] [--threads 1] [--items 12] [--write]
"""

from __future__ import annotations

import functools
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.measured import Figure, options, report, seconds
from support.single_rank import world_of_one_rank

from efficientbench.config.load import resolve

SHAPE = [
    "model.layers=4",
    "model.hidden_size=256",
    "model.heads=4",
    "model.head_dim=64",
    "model.attention.query_groups=2",
    "model.ffn_hidden_size=1024",
    "model.vocab_size=8192",
    "training.seq_len=2048",
    "training.dtype=fp32",
]
CONTEXTS = {"shots": (600, 900), "no_shots": (20, 50)}
"""Tokens of a context, from and to."""
CHOICES, BATCH = 4, 8
Requests = list[tuple[None, list[int], list[int]]]
Side = Callable[[Requests], list[tuple[float, bool]]]


def main() -> None:
    """Run the comparison and print the paired ratios with their 95 % intervals."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--items", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures: dict[str, Figure] = {}
    with world_of_one_rank(), tempfile.TemporaryDirectory() as folder:
        for kind, (fewest, most) in CONTEXTS.items():
            ours, theirs = build(Path(folder) / kind, most)
            requests = requests_of(arguments.items, fewest, most)
            for one, other in zip(ours(requests), theirs(requests), strict=True):  # and a round of warm-up
                assert abs(one[0] - other[0]) < 1e-3, (one, other)
            ratios = []
            for _ in range(arguments.rounds):
                sides = random.sample([ours, theirs], 2)
                times = {side: seconds(functools.partial(side, requests)) for side in sides}
                ratios.append(times[ours] / times[theirs])
                print(f"{kind}: ours {times[ours]:.2f} s, hf {times[theirs]:.2f} s", flush=True)
            what = f"time, contexts of {fewest} to {most} tokens, ours over lm-eval's hf backend"
            figures[kind] = Figure.with_bootstrap(what, ratios, statistics.geometric_mean)
    conditions = (
        f"fp32, {arguments.threads} threads on both sides, {arguments.items} items of {CHOICES} choices, {BATCH} "
        f"sequences in hf's batches and as many tokens in ours, rounds in turn; {', '.join(SHAPE)}"
    )
    report(__file__, arguments, figures, conditions)


def requests_of(items: int, fewest: int, most: int) -> Requests:
    """Contexts and choices of random tokens, as lm-eval gives them to both backends."""
    generator = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [generator.randrange(1, 8192) for _ in range(count)]

    requests: Requests = []
    for _ in range(items):
        context = tokens(generator.randint(fewest, most))
        requests += [(None, context, tokens(generator.randint(2, 8))) for _ in range(CHOICES)]
    return requests


def build(folder: Path, longest: int) -> tuple[Side, Side]:
    """Both backends of the same weights."""
    from lm_eval.models.huggingface import HFLM
    from support.exported import checkpointed
    from support.oracle import build as build_model
    from support.oracle import weights_of

    from efficientbench.data_tools.tokenizer import load_tokenizer, train_tokenizer
    from efficientbench.evaluation.lm_eval_adapter import Adapter
    from efficientbench.export.hugging_face import Model, write_model
    from efficientbench.generation.opened import Opened

    train_tokenizer([Path(__file__).read_text()], 300, folder / "tokenizer")
    tokenizer = load_tokenizer(folder / "tokenizer")
    config = resolve("gqa_1.5B", smoke=True, overrides=SHAPE)
    model = build_model(config).eval()
    write_model(Model(config, checkpointed(weights_of(model)), tokenizer), folder / "export")
    hf = HFLM(str(folder / "export"), device="cpu", dtype="float32", batch_size=BATCH)
    ours = Adapter(Opened(model, config, tokenizer, 1, ()), BATCH * longest, lambda done, requests: None)
    return ours._loglikelihood_tokens, lambda requests: hf._loglikelihood_tokens(requests, disable_tqdm=True)


if __name__ == "__main__":
    main()
