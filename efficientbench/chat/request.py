"""A request for an answer, as OpenAI's clients send it: its fields, its limits, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request

from efficientbench.basics.errors import nearest
from efficientbench.data_tools.chat.conversations import ASSISTANT, Message, RowError, joined, read_prompt

MAX_BYTES = 1 << 20
"""Most bytes of a request: more than its most characters take."""
MAX_MESSAGES = 500
MAX_CHARACTERS = 8_000
"""Most characters of a message."""
MAX_ALL_CHARACTERS = 32_000
"""Most characters of all messages together."""
MAX_PROMPT_TOKENS = 32_000
MAX_ANSWER_TOKENS = 4_096
MAX_ANSWERS = 8
"""Most answers to one request."""
MAX_STOPS, MAX_STOP = 4, 1_000
"""Most strings of `stop`, and most characters of one."""
ANSWER_TOKENS = 512
"""Token limit of an answer whose request sets none."""

Tokens = Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)]
Zero = Annotated[float, Field(ge=0, le=0)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP)]
Empty = Annotated[list[Any], Field(max_length=0)]


@dataclass(eq=False)
class RequestError(Exception):
    """A request that gets an error as its answer, with the HTTP status; the message is for the user."""

    status: int
    message: str
    param: str | None = None
    """The field that is wrong, like `messages[0].role`."""
    code: str | None = None

    def content(self) -> dict[str, Any]:
        """Return the error as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    """What a stream sends beside the answer."""

    include_usage: bool = False


class TextFormat(BaseModel):
    """The form of an answer: text."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class ChatRequest(BaseModel):
    """The known fields; a field with one allowed value is there because its other values are not implemented here."""

    # NaN lies within every range.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: float = Field(default=0.8, ge=0, le=2)
    top_p: float = Field(default=1.0, ge=0, le=1)
    top_k: int = Field(default=50, ge=0, description="0: all tokens")
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = Field(default_factory=list)
    n: int = Field(default=1, ge=1, le=MAX_ANSWERS)
    frequency_penalty: Zero = 0
    presence_penalty: Zero = 0
    user: str | None = None
    # Clients send these with the values that change nothing.
    tools: Empty = Field(default_factory=list)
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] = Field(default_factory=dict)
    response_format: TextFormat | None = None
    store: Literal[False] = False
    logprobs: Literal[False] = False

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        """Drop fields with the value null, which some clients send for a field that they do not set."""
        return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value

    @property
    def stops(self) -> list[str]:
        """Return the strings before which the answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def answer_tokens(self) -> int | None:
        """Return the token limit of the answer; None: the default."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def answer_field(self) -> str:
        """Return the name of the field that sets the token limit."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"


async def read_body(request: Request) -> bytes:
    """Return a request's body. Raises RequestError: it is not JSON, too long, or incomplete."""
    # A page of another site can send other types without asking this server first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "Content-Type: application/json is needed", "Content-Type")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BYTES:
                raise RequestError(413, f"the request has more than {MAX_BYTES:,} bytes")
    except ClientDisconnect:
        raise RequestError(400, "the client left before its request was whole") from None
    return bytes(body)


def read_request(body: bytes) -> tuple[ChatRequest, tuple[Message, ...]]:
    """Read a request and its messages.

    Raises:
        RequestError: status 400, with the field that is wrong.
    """
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = _field(first["loc"])
        message = f"{field}: {first['msg']}" if field else first["msg"]
        if first["loc"][:1] == ("stop",):
            # Its errors name one of the two forms, which may not be the one that was sent.
            field, message = "stop", f"stop: at most {MAX_STOPS} strings are taken, of 1 to {MAX_STOP:,} characters"
        if first["type"] == "extra_forbidden":
            near = nearest(field, ChatRequest.model_fields)
            message = f"{field}: unknown field" + (f"; did you mean {near}?" if near else "")
        raise RequestError(400, message, field or None) from None
    try:
        messages = read_prompt([_as_ours(each) for each in request.messages])
    except RowError as error:
        raise RequestError(400, str(error), str(error).partition(":")[0]) from None
    _check_characters(messages)
    return request, joined(messages)


def _field(location: Sequence[int | str]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location).removeprefix(".")


def _as_ours(message: Any) -> Any:
    """Return a message; an answer of ours that comes back with its parts as content."""
    if not isinstance(message, dict) or message.get("role") != ASSISTANT or message.get("parts") is None:
        return message
    return {**{key: value for key, value in message.items() if key != "parts"}, "content": message["parts"]}


def _check_characters(messages: Sequence[Message]) -> None:
    lengths = [sum(len(part.text) for part in message.parts) for message in messages]
    for number, length in enumerate(lengths):
        # An answer of ours may come back at any length.
        if length > MAX_CHARACTERS and messages[number].role != ASSISTANT:
            field = f"messages[{number}].content"
            raise RequestError(400, f"{field}: {length:,} characters, at most {MAX_CHARACTERS:,} are taken", field)
    if sum(lengths) > MAX_ALL_CHARACTERS:
        message = f"messages: {sum(lengths):,} characters together, at most {MAX_ALL_CHARACTERS:,} are taken"
        raise RequestError(400, message, "messages", "context_length_exceeded")
