"""The commands `efficientbench chat` and `efficientbench serve`: to talk with a chat model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import Kinds, Seed, Step, Temperature, Weights, count, find_run, option, rounded

ChatRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="folder of a run that learned conversations, like output/mine/sft_d12")
]


def chat(
    run_folder: ChatRun,
    arguments: Kinds = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="answer this alone; without it a conversation")
    ] = None,
    temperature: Temperature = 0.6,
    top_k: Annotated[int, option("K", "choose among the K likeliest tokens; 0: all", 0)] = 50,
    max_new_tokens: Annotated[int, count("most tokens of an answer")] = 256,
    seed: Seed = 0,
    step: Step = None,
    weights: Weights = None,
) -> None:
    """Talk with a run's chat model in the terminal; calls of the calculator are shown as [6*7 = 42]."""
    from efficientbench.chat.answers import chat_opened
    from efficientbench.chat.terminal import chat as chat_with
    from efficientbench.generation.sampling import Sampling

    quantization, _ = rounded(weights, arguments)
    sampling = Sampling(temperature, top_k, seed=seed)
    with chat_opened(find_run(run_folder), step, quantization) as run:
        code = chat_with(run, prompt, sampling, max_new_tokens)
    raise typer.Exit(code)


def serve(
    run_folder: ChatRun,
    arguments: Kinds = None,
    host: Annotated[str, option("ADDRESS", "where to listen; any but this machine's own needs a key")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: one that is free")] = 8000,
    models: Annotated[int, count("how many clients are answered at once; GPUs take turns")] = 1,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="EFFICIENTBENCH_KEY",
            metavar="KEY",
            show_envvar=True,
            help="what clients must know; others on this machine see an option, and not the variable",
        ),
    ] = None,
    step: Step = None,
    weights: Weights = None,
) -> None:
    """Serve a run's chat model: a page for browsers, and /v1/chat/completions for OpenAI's clients."""
    from efficientbench.chat.serve import serve as serve_run

    quantization, _ = rounded(weights, arguments)
    serve_run(find_run(run_folder), host, port, key, models, step, quantization)
