"""The command `efficientbench generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def generate(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="folder of a run, like output/efficientllm_benchmark/gqa_0.5B")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value]...",
            help="model.attention.kind=package.module:VARIANT, likewise of position: code of a variant of your own, "
            "which the run was trained with",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="text to continue; without it a new document")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="a prompt on each line, instead of --prompt")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", min=1, help="most tokens of a continuation")
    ] = 64,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", min=0.0, help="divides the logits; 0: always the likeliest token"),
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", min=1, help="choose among the K likeliest tokens; all")
    ] = None,
    top_p: Annotated[
        float,
        typer.Option("--top-p", metavar="P", min=0.0, max=1.0, help="and of those the likeliest of this probability"),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="S", min=0, help="of the tokens that are sampled")] = 0,
    batch: Annotated[int, typer.Option("--batch", metavar="B", min=1, help="prompts that are continued at once")] = 8,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="of the checkpoint; without it the last good one")
    ] = None,
) -> None:
    """Continue text by a run's trained model."""
    from efficientbench.config.registry import load_kinds
    from efficientbench.generation.command import generate_text, read_prompts
    from efficientbench.generation.sampling import Sampling

    load_kinds(arguments or [])
    sampling = Sampling(temperature, top_k, top_p, seed)
    texts = read_prompts(prompt, file)
    raise typer.Exit(generate_text(run_folder, texts, sampling, max_new_tokens, batch, step))
