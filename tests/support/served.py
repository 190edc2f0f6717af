"""A chat model behind a port of this machine, in a thread of this process."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from openai import OpenAI
from oracles.oracle import build
from support.chat_tokenizers import of_bytes
from support.command_line import until
from support.configs import tiny
from support.learning import learn

from efficientbench.chat.answers import Chat
from efficientbench.chat.connections import make_server
from efficientbench.chat.pool import pool_of
from efficientbench.chat.serve import LOOPBACK_NAMES, listening
from efficientbench.chat.web import make_app
from efficientbench.data_tools.chat.conversations import read_messages
from efficientbench.data_tools.chat.render import make_renderer
from efficientbench.generation.calls import find_calculator
from efficientbench.generation.open_run import Opened


def chat_of(run: Opened) -> Chat:
    """A chat with a model that no run's folder holds."""
    renderer = make_renderer(run.tokenizer, "own")
    return Chat("tiny", run, renderer, find_calculator(renderer, run.tokenizer.decode), ())


@dataclass(frozen=True)
class Served:
    """A server, and what speaks with it."""

    url: str
    key: str | None

    @property
    def client(self) -> OpenAI:
        """OpenAI's own client, which tries once."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0, timeout=60)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a page."""
        return self.send(urllib.request.Request(self.url + path, headers=headers))

    def post(self, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        given = {"Content-Type": "application/json", **headers}
        return self.send(urllib.request.Request(f"{self.url}/v1/chat/completions", body, given))

    @staticmethod
    def send(request: urllib.request.Request) -> tuple[int, dict[str, str], bytes]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, dict(response.headers), response.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def stats(self) -> dict[str, Any]:
        """What the server has done."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        found: dict[str, Any] = json.loads(self.get("/stats", **headers)[2])
        return found


@contextlib.contextmanager
def served(
    chat: Chat, models: int = 1, key: str | None = None, also: Callable[[FastAPI], None] | None = None
) -> Iterator[Served]:
    """Serve a chat while the block runs; `also` may give the application further pages."""
    with listening("127.0.0.1", 0) as listener, pool_of(chat.run, models) as pool:
        app = make_app(chat, pool, key, LOOPBACK_NAMES)
        if also is not None:
            also(app)
        server = make_server(app)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            until(lambda: server.started or not thread.is_alive(), "a server")
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", key)
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()


def learned_chat(folder: Path, messages: list[Any]) -> Chat:
    """A model that knows one conversation by heart."""
    rendered = make_renderer(of_bytes(folder / "tokenizer"), "own").conversation(read_messages(messages))
    return learned_tokens(folder, rendered.ids.tolist(), rendered.mask.tolist())


def learned_tokens(folder: Path, ids: list[int], mask: list[int]) -> Chat:
    """A model that knows these ids by heart, where the mask is 1."""
    config = tiny("gqa_1.5B", "model.vocab_size=266", "model.init_std=0.2", "model.tied=false")
    model = learn(build(config), config, torch.tensor([ids]), torch.tensor([mask]))
    return chat_of(Opened(model, config, of_bytes(folder / "tokenizer"), 1, ()))


def call(expression: str, result: str) -> list[dict[str, str]]:
    """A call of the calculator and its result, as parts of a message."""
    return [{"type": "python", "text": expression}, {"type": "python_output", "text": result}]
