"""The command `efficientbench generate`: texts, or with --measure what they cost."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import (
    MatrixFile,
    Seed,
    Smoke,
    Step,
    Temperature,
    Weights,
    count,
    find_run,
    names,
    option,
    rounded,
    switch,
)


def generate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="folder of a run, like output/efficientllm_benchmark/gqa_0.5B; with --measure also the name of a run, "
            "like gqa_0.5B, which gets random weights, or several: gqa_0.5B,mla_0.5B",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value]...",
            help="of a folder: model.attention.kind=package.module:VARIANT, likewise of position: code of a variant of "
            "your own, which the run was trained with; of a name: keys of the configuration, as for `run`",
        ),
    ] = None,
    prompt: Annotated[str | None, option("TEXT", "text to continue; without it a new document")] = None,
    file: Annotated[Path | None, option("FILE", "a prompt on each line, instead of --prompt")] = None,
    max_new_tokens: Annotated[int, count("most tokens of a continuation")] = 64,
    temperature: Temperature = 0.0,
    top_k: Annotated[int | None, option("K", "choose among the K likeliest tokens; all", 1)] = None,
    top_p: Annotated[
        float, typer.Option(metavar="P", min=0.0, max=1.0, help="and of those the likeliest of this probability")
    ] = 1.0,
    seed: Seed = 0,
    batch: Annotated[str | None, option("B", "prompts that are continued at once (8); measured: a list (1,8)")] = None,
    step: Step = None,
    tp: Annotated[int, count("devices that share the model's heads, one process each")] = 1,
    measure: Annotated[bool, switch("--measure", "measure time, memory and energy, and write generation.json")] = False,
    prompt_tokens: Annotated[str | None, option("LIST", "measured: lengths of prompts (128,2048)")] = None,
    repeats: Annotated[int | None, count("measured: fewest requests of each row (5)")] = None,
    compiled: Annotated[
        bool, switch("--compile", "measured: decoding steps by torch.compile, compiled before they count")
    ] = False,
    weights: Weights = None,
    smoke: Smoke = False,
    matrix: MatrixFile = None,
) -> None:
    """Continue text by a run's trained model, or measure what generation costs."""
    if measure:
        if prompt is not None or file is not None:
            raise typer.BadParameter("--measure: prompts are random tokens; leave --prompt and --file out")
        if (temperature, top_k, top_p, seed) != (0.0, None, 1.0, 0):
            raise typer.BadParameter(
                "--measure: each token is the likeliest; leave --temperature, --top-k, --top-p and --seed out"
            )
        if tp > 1:
            raise typer.BadParameter("--measure: one process on one device is measured; leave --tp out")
        sizes = (numbers("--prompt-tokens", prompt_tokens or "128,2048"), numbers("--batch", batch or "1,8"))
        raise typer.Exit(
            _measure(run, arguments or [], sizes, max_new_tokens, repeats or 5, compiled, weights, smoke, step, matrix)
        )
    if prompt_tokens or repeats or compiled or smoke or matrix:
        raise typer.BadParameter("--prompt-tokens, --repeats, --compile, --smoke and --matrix need --measure")
    from efficientbench.generation.command import generate_text, read_prompts
    from efficientbench.generation.on_ranks import Generation, SharedModel
    from efficientbench.generation.sampling import Sampling

    if temperature == 0 and (top_k, top_p, seed) != (None, 1.0, 0):
        raise typer.BadParameter(
            "--top-k, --top-p and --seed: at temperature 0 each token is the likeliest; set --temperature, e.g. 1.0"
        )
    [together] = numbers("--batch", batch or "8", most=1)
    quantization, kinds = rounded(weights, arguments)
    model = SharedModel(kinds, step, tp, quantization=quantization)
    sampling = Sampling(temperature, top_k, top_p, seed)
    request = Generation(model, find_run(run), tuple(read_prompts(prompt, file)), sampling, max_new_tokens, together)
    raise typer.Exit(request.run() if tp > 1 else generate_text(request))


def _measure(
    run: str,
    arguments: list[str],
    sizes: tuple[list[int], list[int]],
    max_new_tokens: int,
    repeats: int,
    compiled: bool,
    weights: str | None,
    smoke: bool,
    step: int | None,
    matrix: Path | None,
) -> int:
    from efficientbench.config.matrix import MATRIX
    from efficientbench.config.quantization import FULL, split_quantization
    from efficientbench.generation.measuring.measure_command import measure_run, target
    from efficientbench.generation.memory import Case

    if max_new_tokens < 2:
        raise typer.BadParameter("--max-new-tokens: decoding is measured from the second token on: give 2 or more")
    cases = [Case(tokens, rows, max_new_tokens) for tokens, rows in itertools.product(*sizes)]
    runs, widths = [run] if Path(run).is_dir() else names(run), names(weights or FULL)
    # A name without a path is that of a run with random weights.
    runs = [str(find_run(each)) if len(Path(each).parts) > 1 else each for each in runs]
    if len(runs) * len(widths) > 1:
        from efficientbench.generation.measuring.measure_command import measure_several

        options = ["--measure", "--max-new-tokens", f"{max_new_tokens}", "--repeats", f"{repeats}"]
        for name, listed in zip(("--prompt-tokens", "--batch"), sizes, strict=True):
            options += [name, ",".join(map(str, listed))]
        options += ["--compile"] if compiled else []
        options += ["--smoke"] if smoke else []
        options += ["--step", f"{step}"] if step is not None else []
        options += ["--matrix", f"{matrix}"] if matrix is not None else []
        return measure_several(runs, widths, arguments, options, smoke, matrix or MATRIX)
    quantization, others = split_quantization(weights, arguments)
    with target(runs[0], others, smoke, step, matrix or MATRIX, quantization) as found:
        return measure_run(found, cases, repeats, compiled)


def numbers(name: str, text: str, most: int | None = None) -> list[int]:
    """Split a list of whole numbers like `1,8`. Raises BadParameter: it is none, or has more than `most`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{name}: {text!r} is no list of numbers above 0, like 1,8")
    if most is not None and len(parts) > most:
        raise typer.BadParameter(f"{name}: {text!r} is a list, which only --measure takes")
    return list(dict.fromkeys(map(int, parts)))
