"""The commands `efficientbench chat` and `efficientbench serve`: to talk with a chat model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ChatRun = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="folder of a run that learned conversations, like output/mine/sft_d12"),
]
Kinds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key=value]...",
        help="model.attention.kind=package.module:VARIANT, likewise of position: code of a variant of your own, "
        "which the run was trained with",
    ),
]
Step = Annotated[
    int | None, typer.Option("--step", metavar="N", help="of the checkpoint; without it the last good one")
]


def chat(
    run_folder: ChatRun,
    arguments: Kinds = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="answer this alone; without it a conversation")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", min=0.0, help="divides the logits; 0: always the likeliest token"),
    ] = 0.6,
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="K", min=0, help="choose among the K likeliest tokens; 0: all")
    ] = 50,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", min=1, help="most tokens of an answer")
    ] = 256,
    seed: Annotated[int, typer.Option("--seed", metavar="S", min=0, help="of the tokens that are sampled")] = 0,
    step: Step = None,
) -> None:
    """Talk with a run's chat model in the terminal; calls of the calculator are shown as [6*7 = 42]."""
    from efficientbench.architecture.registry import load_kinds
    from efficientbench.chat.answers import chat_opened
    from efficientbench.chat.terminal import chat as chat_with
    from efficientbench.generation.sampling import Sampling

    load_kinds(arguments or [])
    sampling = Sampling(temperature, top_k, seed=seed)
    with chat_opened(run_folder, step) as run:
        code = chat_with(run, prompt, sampling, max_new_tokens)
    raise typer.Exit(code)


def serve(
    run_folder: ChatRun,
    arguments: Kinds = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="where to listen; any but this machine's own needs a key")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: one that is free")] = 8000,
    models: Annotated[
        int,
        typer.Option("--models", metavar="N", min=1, help="how many clients are answered at once; GPUs take turns"),
    ] = 1,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            envvar="EFFICIENTBENCH_KEY",
            metavar="KEY",
            show_envvar=True,
            help="what clients must know; others on this machine see an option, and not the variable",
        ),
    ] = None,
    step: Step = None,
) -> None:
    """Serve a run's chat model: a page for browsers, and /v1/chat/completions for OpenAI's clients."""
    from efficientbench.architecture.registry import load_kinds
    from efficientbench.chat.serve import serve as serve_run

    load_kinds(arguments or [])
    serve_run(run_folder, host, port, key, models, step)
