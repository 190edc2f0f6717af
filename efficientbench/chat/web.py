"""The pages and endpoints of a chat model; the answers speak OpenAI's protocol of chat completions.

Source of the protocol: platform.openai.com/docs/api-reference/chat. A call of the calculator and its result are in
`parts` of a message and in `part` of a stream's delta, beside the text in `content`.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from efficientbench.basics.errors import GenerationError
from efficientbench.chat.answers import Chat, Said, parts_of
from efficientbench.chat.pool import Pool
from efficientbench.chat.request import (
    ANSWER_TOKENS,
    MAX_PROMPT_TOKENS,
    ChatRequest,
    RequestError,
    read_body,
    read_request,
)
from efficientbench.data_tools.chat.conversations import ASSISTANT, TEXT, Message
from efficientbench.devices.registry import find_device
from efficientbench.generation.memory import Case, too_large, usable_bytes
from efficientbench.generation.sampling import Sampling
from efficientbench.running.failures import ran_out_of_memory

PORT = re.compile(r":\d+$", re.ASCII)
"""The port at the end of the header Host."""
MAX_WAITING = 64
"""Most clients that may wait for a model."""
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The page loads nothing, speaks with its own server alone, and lies in no frame of another page."""


@dataclass
class Counts:
    """What the server has done since its start."""

    answers: int = 0
    """Complete answers."""
    left: int = 0
    """Answers whose client left before the end."""
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Answer:
    """One answer, also while it is incomplete."""

    request: ChatRequest
    prompt: list[int]
    max_new_tokens: int
    place: object
    """The client's place among those who wait."""
    said: list[Said] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, chat: Chat, kind: str) -> dict[str, Any]:
        """Return the fields with which every object of the protocol begins."""
        return {"id": self.id, "object": kind, "created": self.created, "model": chat.name}

    @property
    def ended(self) -> bool:
        """Whether all its choices have come to their end."""
        return sum(said.finish is not None for said in self.said) == self.request.n

    @property
    def usage(self) -> dict[str, int]:
        """Return the number of tokens of prompt and answer."""
        prompt, completion = len(self.prompt), len(self.said)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Server:
    """Answers requests with a pool of models."""

    def __init__(self, chat: Chat, pool: Pool) -> None:
        """Take the chat model, and the pool that computes its answers."""
        self.chat, self.pool, self.counts, self._started_s = chat, pool, Counts(), time.monotonic()
        self.usable_bytes = usable_bytes(find_device(chat.run.config.device, trains=False))

    def stats(self) -> dict[str, Any]:
        """Return the counts since the start, and how many models are busy."""
        models = len(self.pool.workers)
        busy = {"models": models, "busy": models - self.pool.free, "waiting": self.pool.waiting}
        return {**busy, **asdict(self.counts), "uptime_s": time.monotonic() - self._started_s}

    def accepted(self, request: ChatRequest, messages: tuple[Message, ...]) -> Answer:
        """Return a new answer. Raises RequestError: no such model, too many clients wait, or the prompt is too long."""
        name = self.chat.name
        if request.model not in (None, name):
            raise RequestError(404, f"model: there is no {request.model}; this is {name}", "model", "model_not_found")
        if self.pool.waiting >= MAX_WAITING:
            raise RequestError(503, f"{MAX_WAITING} clients wait already: try again later", code="busy")
        prompt = self.chat.prompt(messages)
        room = self._room(len(prompt), request)
        # Last: only the holder of an answer gives the place up. Without an await, no other client comes in between.
        return Answer(request, prompt, room, self.pool.place())

    def _room(self, prompt_tokens: int, request: ChatRequest) -> int:
        """Return the token limit of an answer. Raises RequestError: the prompt or the answer is too long."""
        config, wanted = self.chat.run.config, request.answer_tokens
        longest = config.model.position.longest
        most = MAX_PROMPT_TOKENS if longest is None else min(MAX_PROMPT_TOKENS, longest - 1)
        if prompt_tokens > most:
            message = f"messages: {prompt_tokens:,} tokens, and the model takes at most {most:,}"
            raise RequestError(400, message, "messages", "context_length_exceeded")
        left = ANSWER_TOKENS if longest is None else longest - prompt_tokens
        if wanted is not None and longest is not None and wanted > left:
            message = (
                f"{request.answer_field}: {wanted:,} tokens behind the {prompt_tokens:,} of the messages are more than "
                f"the {longest:,} positions of the model: {left:,} would fit"
            )
            raise RequestError(400, message, request.answer_field, "context_length_exceeded")
        tokens = wanted or min(ANSWER_TOKENS, left)
        reason = too_large(config, Case(prompt_tokens, request.n, tokens), self.usable_bytes, self.chat.run.form)
        if reason is not None:
            raise RequestError(400, f"messages: {reason}", "messages", "context_length_exceeded")
        return tokens

    async def pieces(self, answer: Answer, client: Request) -> AsyncGenerator[Said, None]:
        """Yield an answer token by token; end when the client has left.

        Raises:
            RequestError: the model computed NaN or infinity, or ran out of memory.
        """
        asked = answer.request
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        sampling = Sampling(asked.temperature, asked.top_k, asked.top_p, seed)
        steps = self.pool.run(
            lambda model: self.chat.answer(model, answer.prompt, sampling, answer.max_new_tokens, asked.stops, asked.n),
            client.is_disconnected,
            answer.place,
        )
        failed = False
        try:
            async with contextlib.aclosing(steps):
                async for said in steps:
                    answer.said.append(said)
                    yield said
        except (GenerationError, RuntimeError, MemoryError) as error:
            failed = True
            if isinstance(error, GenerationError):
                raise RequestError(500, str(error)) from None
            if ran_out_of_memory(error):
                raise RequestError(503, "out of memory: a shorter conversation may fit", code="busy") from None
            raise
        finally:
            self.counts.answers += answer.ended
            self.counts.failed += failed
            self.counts.left += not answer.ended and not failed
            self.counts.prompt_tokens += len(answer.prompt)
            self.counts.completion_tokens += len(answer.said)

    async def whole(self, answer: Answer, client: Request) -> Response:
        """Return the complete answer as one response."""
        async with contextlib.aclosing(self.pieces(answer, client)) as pieces:
            async for _ in pieces:
                pass
        if not answer.ended:
            # Nobody reads it; 499 is what servers log for a client that has left.
            return Response(status_code=499)
        choices = [self._choice(index, answer) for index in range(answer.request.n)]
        return JSONResponse({**answer.head(self.chat, "chat.completion"), "choices": choices, "usage": answer.usage})

    @staticmethod
    def _choice(index: int, answer: Answer) -> dict[str, Any]:
        """Return one of the complete answers to a request."""
        own = [said for said in answer.said if said.sample == index]
        text = "".join(said.text for said in own if said.kind == TEXT)
        message: dict[str, Any] = {"role": ASSISTANT, "content": text}
        parts = parts_of(own)
        if any(part.kind != TEXT for part in parts):
            message["parts"] = [{"type": part.kind, "text": part.text} for part in parts]
        return {"index": index, "message": message, "finish_reason": own[-1].finish, "logprobs": None}

    async def events(self, answer: Answer, client: Request) -> AsyncIterator[str]:
        """Yield an answer as server-sent events."""
        head, options = answer.head(self.chat, "chat.completion.chunk"), answer.request.stream_options

        def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> str:
            return _event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]})

        for index in range(answer.request.n):
            yield chunk(index, {"role": ASSISTANT, "content": ""})
        try:
            async with contextlib.aclosing(self.pieces(answer, client)) as pieces:
                async for said in pieces:
                    # Send tokens without text, too: one lies between two calls that have no result.
                    part = {"part": {"type": said.kind, "text": said.text}}
                    yield chunk(said.sample, {"content": said.text} if said.kind == TEXT else part)
                    if said.finish is not None:
                        yield chunk(said.sample, {}, said.finish)
        except RequestError as error:
            yield _event(error.content())
            return
        if options is not None and options.include_usage:
            yield _event({**head, "choices": [], "usage": answer.usage})
        yield "data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """An answer as server-sent events, which gives up its place also where the client leaves before it begins."""

    def __init__(self, server: Server, answer: Answer, client: Request) -> None:
        """Prepare the answer."""
        events, headers = server.events(answer, client), {"Cache-Control": "no-cache"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self.server, self.answer = server, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, and give up its place."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.server.pool.leave(self.answer.place)


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def make_app(chat: Chat, pool: Pool, key: str | None, hosts: Collection[str]) -> FastAPI:
    """Return the application.

    Args:
        chat: the chat model.
        pool: the pool that computes its answers.
        key: the key that clients must know; None: whoever reaches the server may ask.
        hosts: the names under which browsers reach a server without a key.
    """
    server = Server(chat, pool)
    names = {f"[{host}]" if ":" in host else host.lower() for host in hosts}
    html = Path(__file__).with_name("page.html").read_text(encoding="utf-8")

    async def known(request: Request) -> None:
        # DNS rebinding: another site can let its own name resolve to this machine; the browser still sends that name.
        host = PORT.sub("", request.headers.get("host", "").lower())
        if key is None and host not in names:
            raise RequestError(403, f"Host: this server is {' or '.join(sorted(hosts))}", code="unknown_host")

    async def with_key(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key is not None and not secrets.compare_digest(given.encode(), key.encode()):
            raise RequestError(401, "the key of this server is needed", code="invalid_api_key")

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(known)])
    guarded = [Depends(with_key)]

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return JSONResponse(error.content(), error.status)

    @app.exception_handler(HTTPException)
    async def nowhere(request: Request, error: HTTPException) -> Response:
        told = RequestError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        return JSONResponse(told.content(), error.status_code, error.headers)

    @app.get("/")
    async def page() -> Response:
        return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"})

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok", "model": chat.name, "models": len(pool.workers), "free": pool.free})

    @app.get("/stats", dependencies=guarded)
    async def stats() -> Response:
        return JSONResponse(server.stats())

    @app.get("/v1/models", dependencies=guarded)
    async def models() -> Response:
        model = {"id": chat.name, "object": "model", "created": 0, "owned_by": "efficientbench"}
        return JSONResponse({"object": "list", "data": [model]})

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def complete(request: Request) -> Response:
        answer = server.accepted(*read_request(await read_body(request)))
        streamed = answer.request.stream
        return EventStream(server, answer, request) if streamed else await server.whole(answer, request)

    return app
