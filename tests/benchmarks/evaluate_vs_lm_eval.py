"""Time to answer requests of lm-eval, ours against its `hf` backend on the export, on this machine's CPU.

The same weights, requests, dtype and threads, and about as many tokens in a batch; rounds of both in turn. With shots
an item's four choices share a long context; without, a short one; letters are choices of one token; texts are written
greedily. With --core also the rows of an evaluation bundle's tasks, with their shots.

    python3 tests/benchmarks/evaluate_vs_lm_eval.py [--rounds 5] [--threads 1] [--items 12] [--core FOLDER] [--write]
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.console import Console
from support.measured import Figure, options, report, seconds
from support.repository import ROOT
from support.single_rank import world_of_one_rank

from efficientbench.config.load import resolve
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.evaluation.core.task import continuations, prompts

if TYPE_CHECKING:
    from lm_eval.models.huggingface import HFLM

    from efficientbench.evaluation.lm_eval.adapter import Adapter

VOCABULARY = 8192
SHAPE = [
    "model.layers=4",
    "model.hidden_size=256",
    "model.heads=4",
    "model.head_dim=64",
    "model.attention.query_groups=2",
    "model.ffn_hidden_size=1024",
    f"model.vocab_size={VOCABULARY}",
    "training.seq_len=2048",
    "training.dtype=fp32",
]
CONTEXTS = {"shots": (600, 900, 2, 8), "no_shots": (20, 50, 2, 8), "letters": (100, 200, 1, 1)}
"""Tokens of a context and of a choice, each from and to."""
CHOICES, BATCH, NEW_TOKENS = 4, 8, 32
Requests = list[tuple[None, list[int], list[int]]]


@dataclass(frozen=True)
class Both:
    """Two ways to the same answers."""

    what: str
    ours: Callable[[], list[Any]]
    theirs: Callable[[], list[Any]]
    alike: Callable[[Any, Any], bool]
    """Whether two answers are the same but for rounding."""


def main() -> None:
    """Run the comparison and print the paired ratios with their 95 % intervals."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--items", type=int, default=12)
    parser.add_argument("--core", type=Path, help="folder of an evaluation bundle")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with world_of_one_rank(), tempfile.TemporaryDirectory() as folder:
        pairs = pairs_of(Path(folder), arguments.items, arguments.core)
        figures = {name: compared(name, both, arguments.rounds) for name, both in pairs.items()}
    rows = f"{arguments.items} rows of each task of CORE, cut to the trained length; " if arguments.core else ""
    conditions = (
        f"fp32; threads of each side: {arguments.threads}; {arguments.items} items of {CHOICES} choices or of a text; "
        f"{rows}{BATCH} sequences in hf's batches and as many tokens in ours; rounds in turn; {', '.join(SHAPE)}"
    )
    report(__file__, arguments, figures, conditions)


def compared(name: str, both: Both, rounds: int) -> Figure:
    """The ratio of both times, over rounds in which they take turns by chance."""
    for one, other in zip(both.ours(), both.theirs(), strict=True):  # and a round of warm-up
        assert both.alike(one, other), (name, one, other)
    ratios = []
    for _ in range(rounds):
        sides = random.sample([both.ours, both.theirs], 2)
        times = {side: seconds(side) for side in sides}
        ratios.append(times[both.ours] / times[both.theirs])
        print(f"{name}: ours {times[both.ours]:.2f} s, hf {times[both.theirs]:.2f} s", flush=True)
    what = f"time, {both.what}, ours over lm-eval's hf backend"
    return Figure.with_bootstrap(what, ratios, statistics.geometric_mean)


def pairs_of(folder: Path, items: int, core: Path | None) -> dict[str, Both]:
    """What is compared, by the names of the figures."""
    hf, tokenizer, make = build(folder)
    pairs = {}
    for name, (fewest, most, shortest, longest) in CONTEXTS.items():
        choices = f"{shortest} to {longest}" if shortest < longest else f"{longest}"
        what = f"contexts of {fewest} to {most} tokens, choices of {choices}"
        pairs[name] = scored(what, requests_of(items, *CONTEXTS[name]), hf, make)
    pairs["texts"] = written(items, tokenizer, hf, make)
    for name, requests in ({} if core is None else core_requests(core, items, tokenizer)).items():
        pairs[f"core_{name}"] = scored(f"{name} of CORE", requests, hf, make)
    return pairs


def scored(what: str, requests: Requests, hf: HFLM, make: Callable[[int], Adapter]) -> Both:
    """Log-likelihoods of choices."""
    ours = make(BATCH * max(len(context) + len(end) for _, context, end in requests))
    return Both(
        what,
        lambda: ours._loglikelihood_tokens(requests),
        lambda: hf._loglikelihood_tokens(requests, disable_tqdm=True),
        lambda one, other: abs(one[0] - other[0]) < 1e-3 and one[1] == other[1],
    )


def written(items: int, tokenizer: TextTokenizer, hf: HFLM, make: Callable[[int], Adapter]) -> Both:
    """Texts of a fixed number of tokens behind pieces of this file."""
    from lm_eval.api.instance import Instance

    words, generator = Path(__file__).read_text().split(), random.Random(1)
    settings = {"until": [], "max_gen_toks": NEW_TOKENS, "do_sample": False}
    requests = []
    for number in range(items):
        first = generator.randrange(len(words) // 2)
        text = " ".join(words[first : first + generator.randint(50, 150)])
        requests.append(Instance("generate_until", {}, (text, settings), number))
    ours = make(BATCH * 2048)
    return Both(
        f"texts of {NEW_TOKENS} tokens",
        lambda: ours.generate_until(requests),
        lambda: hf.generate_until(requests, disable_tqdm=True),
        lambda one, other: one == other,
    )


def requests_of(items: int, fewest: int, most: int, shortest: int, longest: int) -> Requests:
    """Contexts and choices of random tokens, as lm-eval gives them to both backends."""
    generator = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [generator.randrange(1, VOCABULARY) for _ in range(count)]

    requests: Requests = []
    for _ in range(items):
        context = tokens(generator.randint(fewest, most))
        requests += [(None, context, tokens(generator.randint(shortest, longest))) for _ in range(CHOICES)]
    return requests


def core_requests(folder: Path, items: int, tokenizer: TextTokenizer) -> dict[str, Requests]:
    """The first rows of each task of a bundle, with the prompts and the shots of CORE."""
    found: dict[str, Requests] = {}
    for name, task in read_bundle(folder, None).tasks.items():
        found[name] = [
            (None, list(each.tokens[: each.first]), list(each.tokens[each.first :]))
            for number in range(min(items, len(task.rows)))
            for each in continuations(task.kind, prompts(task, number), tokenizer.encode_batch, tokenizer.eod_id, None)
            if each.first < len(each.tokens)
        ]
    return found


def build(folder: Path) -> tuple[HFLM, TextTokenizer, Callable[[int], Adapter]]:
    """Both backends of the same weights; ours for a number of tokens in a batch."""
    from lm_eval.models.huggingface import HFLM
    from oracles.oracle import build as build_model
    from oracles.oracle import weights_of
    from support.exported import checkpointed

    from efficientbench.evaluation.lm_eval.adapter import Adapter
    from efficientbench.export.hugging_face import Model, write_model
    from efficientbench.generation.open_run import Opened

    sources = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "efficientbench").glob("**/*.py")])
    train_tokenizer([path.read_text() for path in sources], VOCABULARY, folder / "tokenizer")
    tokenizer = load_tokenizer(folder / "tokenizer")
    assert tokenizer.vocab_size == VOCABULARY
    config = resolve("gqa_1.5B", smoke=True, overrides=SHAPE)
    model = build_model(config).eval()
    write_model(Model(config, checkpointed(weights_of(model)), tokenizer), folder / "export")
    hf = HFLM(str(folder / "export"), device="cpu", dtype="float32", batch_size=BATCH)
    run = Opened(model, config, tokenizer, 1, ())
    return hf, tokenizer, lambda budget: Adapter(run, budget, Console(quiet=True))


if __name__ == "__main__":
    main()
