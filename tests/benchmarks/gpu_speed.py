"""How fast training and generation are on one GPU, in one call of under ten minutes.

Every figure of training is of whole optimizer steps on random tokens, waited for at both ends, with float32 master
weights and the kernels that a run of the same configuration would have. Of the parts, only the headline and some of the
risks have run on a GPU.

    python3 tests/benchmarks/gpu_speed.py [--parts headline risks ...] [--limit-s 540] [--output speed.json] [--write]
    python3 tests/benchmarks/gpu_speed.py --rehearse    # the same on a CPU with toy models: does the script work?
    python3 tests/benchmarks/gpu_speed.py --read FILE... --write    # the figures of earlier calls, also of elsewhere

The parts, those first that say most:

- headline: gqa_1.5B, sequence 2,048, bf16, at micro-batches of 2, 4 and 8 sequences: tokens/s, MFU (causal attention
  halved, and the full square), memory against the plan's estimate, and where a step's time goes; transformers' compiled
  training of the same model at the first and the last of these sizes; then the first figure once more.
- risks: one figure of each architecture that has kernels of its own: NSA, relative, mixture of experts, MLA, nanochat's
  backbone, KDA and Mamba-2; then gqa_1.5B by Muon.
- lengths: GQA and NSA of 1.5B over sequences of 2,048 to 32,768 tokens: where NSA overtakes GQA.
- generation: prefill and decoding of GQA, MLA, NSA and experts with random weights, for one sequence and for 16.
- transformers: its other three ways to train: weights in bf16 or float32 with autocast, each with torch.compile and
  without.
- matrix: every run of the matrix that fits the card.

`first_light.sh` beside it calls it, in the order for a first half hour.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.console import Console
from rich.table import Table
from support.gpu_bench import STEP_SEQUENCES, Bench, Generation, Speed
from support.measured import UNKNOWN_COMMIT, Figure, options, report
from support.single_rank import world_of_one_rank

from efficientbench.config.matrix import load_matrix
from efficientbench.devices.registry import find_device
from efficientbench.generation.memory import Case

LENGTHS = (2048, 8192, 32_768)
MICRO_BATCHES = (2, 4, 8)
RISKS = ("nsa_1.5B", "relative_1.5B", "moe_0.5Bx8", "mla_1.5B", "nanochat_d12", "kda_3to1_1.5B", "mamba2_1.5B")
GENERATING = ("gqa_1.5B", "mla_1.5B", "nsa_1.5B", "moe_0.5Bx8")
CASES, TOY_CASE = (Case(1024, 1, 64), Case(1024, 16, 64)), Case(16, 2, 4)
CONDITIONS = "one device; training: whole optimizer steps on random tokens; generation: random weights and prompts"


def headline(bench: Bench) -> None:
    """Measure the first figure with its neighbours, transformers at its best, and the first figure again."""
    for size in MICRO_BATCHES:
        config = bench.config("gqa_1.5B", f"training.micro_batch_size={size}")
        bench.ours("headline", config, bench.output.with_suffix(".kernels.txt") if size == MICRO_BATCHES[0] else None)
    first, last = (bench.config("gqa_1.5B", f"training.micro_batch_size={size}") for size in MICRO_BATCHES[::2])
    for config in (first, last):
        bench.transformers("headline", config, autocast=False, compiled=True)
    bench.ours("again", first)


def risks(bench: Bench) -> None:
    """Measure the architectures whose kernels are their own, and the optimizer whose products are."""
    size = f"training.micro_batch_size={MICRO_BATCHES[0]}"
    for name in RISKS:
        bench.ours("risks", bench.config(name, size))
    bench.ours("risks", bench.config("gqa_1.5B", size, changes=["training.optimizer=muon"]), name="gqa_1.5B, Muon")


def lengths(bench: Bench) -> None:
    """Measure GQA and NSA over the sequence's length, with as many tokens in a step."""
    for length in LENGTHS[:1] if bench.toy else LENGTHS:
        batch = max(1, 16_384 // length)
        words = [f"training.seq_len={length}", "training.micro_batch_size=1", f"training.global_batch_size={batch}"]
        for name in ("gqa_1.5B", "nsa_1.5B"):
            bench.ours("lengths", bench.config(name, *words))


def generation(bench: Bench) -> None:
    """Measure what using a model costs."""
    for name in GENERATING:
        for case in (TOY_CASE,) if bench.toy else CASES:
            bench.generation(bench.config(name), case)


def transformers(bench: Bench) -> None:
    """Measure the ways of transformers that the headline leaves out."""
    first = bench.config("gqa_1.5B", f"training.micro_batch_size={MICRO_BATCHES[0]}")
    for autocast, compiled in ((True, True), (False, False), (True, False)):
        bench.transformers("transformers", first, autocast, compiled)


def matrix(bench: Bench) -> None:
    """Measure every run of the matrix; in a rehearsal two."""
    for run in load_matrix().runs[: 2 if bench.toy else None]:
        bench.ours("matrix", bench.config(run.name))


PARTS = {each.__name__: each for each in (headline, risks, lengths, generation, transformers, matrix)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure, in this order")
    parser.add_argument("--limit-s", type=float, default=540, help="begin no further measurement after this time")
    parser.add_argument("--output", type=Path, default=Path("gpu_speed.json"))
    parser.add_argument("--rehearse", action="store_true", help="toy models on a CPU")
    parser.add_argument("--read", nargs="+", type=Path, metavar="FILE", help="outputs to read, instead of measuring")
    arguments = parser.parse_args()
    if arguments.rehearse and arguments.write:
        parser.error("--write: a rehearsal measures nothing for the docs")
    if arguments.read:
        about, found, generated = read(arguments.read)
        machine = {"machine": about["device"], "software": f"torch {about['torch']}"}
        machine |= {key: about[key] for key in ("commit", "date")}
        if arguments.write and UNKNOWN_COMMIT in about["commit"]:
            parser.error("--write: these were measured where git knows no commit: enter it in the files")
        report(__file__, arguments, dict(figures_of(found, generated)), CONDITIONS, machine=machine)
        return
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    device = find_device("cpu" if arguments.rehearse else "cuda")
    # The compiler would take minutes of a rehearsal.
    stance = torch.compiler.set_stance("force_eager") if arguments.rehearse else contextlib.nullcontext()
    with world_of_one_rank(device) as torch_device, stance:
        bench = Bench(device, torch_device, arguments.limit_s, arguments.rehearse, arguments.output)
        for name in arguments.parts:
            PARTS[name](bench)
            show(Console(width=170), name, bench)
    report(__file__, arguments, dict(figures_of(bench.found, bench.generated)), CONDITIONS, device)
    print(f"{bench.about}\n{arguments.output}")


def read(paths: Sequence[Path]) -> tuple[dict[str, str], dict[str, list[Speed]], list[Generation]]:
    """Return where earlier calls measured, and what of training and of generation; their parts add up.

    They may have measured several commits, which are all named.
    """
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    commits = dict.fromkeys(content["about"].pop("commit") for content in contents)
    about = contents[0]["about"]
    if any(content.pop("about") != about for content in contents):
        sys.exit("--read: these were measured on different devices, or with different software")
    about["commit"] = ", ".join(commits)
    about["date"] = [content.pop("date") for content in contents][-1]
    generated = [Generation(**row) for content in contents for row in content.pop("generation")]
    found: dict[str, list[Speed]] = defaultdict(list)
    for content in contents:
        for part, rows in content.items():
            found[part] += [Speed(**row) for row in rows]
    return about, found, generated


def figures_of(found: Mapping[str, Sequence[Speed]], generated: Sequence[Generation]) -> Iterator[tuple[str, Figure]]:
    """Yield the figures for the docs, by their keys."""
    for each in (each for part in ("headline", "risks", "lengths", "matrix") for each in found.get(part, ())):
        key = f"{each.name}, sequence {each.seq_len:,}, micro-batch {each.micro_batch_size}"
        if each.tokens_per_s is not None:
            yield f"{key}, tokens/s", Figure(f"{key}: throughput", each.tokens_per_s, "tokens/s")
        if each.mfu is not None:
            yield f"{key}, MFU", Figure(f"{key}: MFU", each.mfu * 100, "%")
        if each.busy_s and each.tokens_per_s:
            share = each.busy_s * each.tokens_per_s / (STEP_SEQUENCES * each.seq_len)
            yield f"{key}, busy", Figure(f"{key}: time of a step's kernels", share * 100, "%")
        if each.allocated_bytes and each.estimate_bytes:
            ratio = each.estimate_bytes / each.allocated_bytes
            yield f"{key}, memory", Figure(f"{key}: the plan's memory estimate over the peak", ratio)
    for row in generated:
        key = f"{row.name}, prompts of {row.prompt_tokens:,}, batch {row.batch}"
        if row.prefill_tokens_per_s is not None:
            yield f"{key}, prefill", Figure(f"{key}: prefill", row.prefill_tokens_per_s, "tokens/s")
        if row.decode_tokens_per_s is not None:
            yield f"{key}, decode", Figure(f"{key}: new tokens", row.decode_tokens_per_s, "tokens/s")
        if row.decode_joules_per_token is not None:
            yield f"{key}, energy", Figure(f"{key}: energy of a new token", row.decode_joules_per_token, "J")
    measured = [each for part in ("headline", "transformers") for each in found.get(part, ()) if each.tokens_per_s]
    fastest: dict[tuple[bool, int], float] = {}
    for each in measured:
        place = "transformers" in each.name, each.micro_batch_size
        fastest[place] = max(fastest.get(place, 0.0), each.tokens_per_s or 0.0)
    for (theirs, size), tokens_per_s in fastest.items():
        if theirs and (False, size) in fastest:
            what = f"gqa_1.5B, micro-batch {size}: tokens/s, ours over the fastest of transformers"
            yield f"ratio, micro-batch {size}", Figure(what, fastest[False, size] / tokens_per_s)
    for again in found.get("again", ()):
        first = fastest.get((False, again.micro_batch_size))
        if again.tokens_per_s and first:
            yield "again", Figure("gqa_1.5B once more, over the first", again.tokens_per_s / first)


def show(console: Console, part: str, bench: Bench) -> None:
    """Print the table of one part."""
    if part == "generation":
        console.print(generation_table(bench.generated))
        return
    columns = ("run", "sequence", "micro-batch", "tokens/s", "MFU", "full square", "peak GB", "held GB", "plan GB")
    table = Table(*columns, title=part)
    for each in [*bench.found[part], *(bench.found["again"] if part == "headline" else [])]:
        cells = cells_of(
            (each.tokens_per_s, 1, ",.0f"),
            (each.mfu, 1, ".1%"),
            (each.mfu_full_square, 1, ".1%"),
            (each.allocated_bytes, 1e9, ".1f"),
            (each.reserved_bytes, 1e9, ".1f"),
            (each.estimate_bytes, 1e9, ".1f"),
        )
        table.add_row(each.name, str(each.seq_len), str(each.micro_batch_size), each.reason or cells[0], *cells[1:])
    console.print(table)


def generation_table(rows: Iterable[Generation]) -> Table:
    """Return the table of prefill and decoding."""
    columns = (
        "run",
        "prompt",
        "batch",
        "prefill tokens/s",
        "new tokens/s",
        "J/new token",
        "bandwidth",
        "cache B/token",
    )
    table = Table(*columns, title="generation")
    for each in rows:
        cells = cells_of(
            (each.prefill_tokens_per_s, 1, ",.0f"),
            (each.decode_tokens_per_s, 1, ",.1f"),
            (each.decode_joules_per_token, 1, ".3f"),
            (each.bandwidth_utilization, 1, ".1%"),
            (each.cache_bytes_per_token, 1, ",.0f"),
        )
        table.add_row(each.name, str(each.prompt_tokens), str(each.batch), each.reason or cells[0], *cells[1:])
    return table


def cells_of(*figures: tuple[float | None, float, str]) -> list[str]:
    """Return the texts of figures, each given with the unit that it is divided by and its format."""
    return ["n/a" if value is None else f"{value / unit:{shape}}" for value, unit, shape in figures]


if __name__ == "__main__":
    main()
