"""Chat styles, which turn conversations into text and special tokens: one for our own tokenizers, one for Qwen's.

Each style exists twice: as the pieces from which ids are rendered, and as a Jinja template, which other programs read
from the tokenizer's folder. Both give the same ids, unless a text contains the name of a special token: the pieces
keep it as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from efficientbench.data_tools.chat.conversations import (
    ASSISTANT,
    CALL,
    LEARNED,
    PART_KINDS,
    SYSTEM,
    TEXT,
    USER,
    Message,
)

CHAT_TOKENS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
"""nanochat's special tokens, which `train-tokenizer --chat` reserves."""


@dataclass(frozen=True)
class Piece:
    """A piece of a rendered conversation."""

    text: str
    is_token: bool = False
    """Whether `text` names a special token; else it is ordinary text, whatever it contains."""
    supervised: bool = False
    """Whether the piece is supervised."""


@dataclass(frozen=True)
class Style:
    """One chat style."""

    name: str
    tokens: tuple[str, ...]
    """The special tokens that the style needs."""
    end: str
    """The token with which the assistant ends its message."""
    opening: tuple[Piece, ...]
    """The pieces before the assistant's words: the end of a prompt."""
    pieces: Callable[[Sequence[Message]], Iterator[Piece]]
    """Turns messages into pieces; the last message may have any role."""
    template: str
    """The style as a Jinja template, with `{% generation %}` around supervised text."""


def find_style(special_tokens: Collection[str]) -> Style | None:
    """Return the style of a tokenizer with these special tokens; None if it has none."""
    return next((style for style in STYLES if set(style.tokens) <= set(special_tokens)), None)


def _token(name: str, supervised: bool = False) -> Piece:
    return Piece(name, is_token=True, supervised=supervised)


def _with_mask(template: str) -> str:
    """Return a template with `{% generation %}` around its `<KIND>…</>` whose kind of part is learned."""
    generated = "{%- generation -%}", "{%- endgeneration -%}"
    return re.sub(
        f"<({'|'.join(PART_KINDS)})>(.*?)</>",
        lambda found: found[2].join(generated if found[1] in LEARNED else ("", "")),
        template,
    )


def _nanochat_pieces(messages: Sequence[Message]) -> Iterator[Piece]:
    yield _token("<|bos|>")
    before = ""
    for message in messages:
        if message.role == SYSTEM:
            before = message.text + "\n\n"
        elif message.role == USER:
            yield from (_token("<|user_start|>"), Piece(before + message.text), _token("<|user_end|>"))
            before = ""
        else:
            yield _token("<|assistant_start|>")
            for part in message.parts:
                own = message.supervised and part.kind in LEARNED
                name = {TEXT: "", CALL: "python"}.get(part.kind, "output")
                if name:
                    yield _token(f"<|{name}_start|>", own)
                yield Piece(part.text, supervised=own)
                if name:
                    yield _token(f"<|{name}_end|>", own)
            yield _token("<|assistant_end|>", message.supervised)


_NANOCHAT_TEMPLATE = r"""{%- macro text(content) -%}
{{- content if content is string else content | map(attribute='text') | join -}}
{%- endmacro -%}
{{- '<|bos|>' -}}
{%- set before = namespace(text='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set before.text = text(message.content) ~ '\n\n' -%}
{%- elif message.role == 'user' -%}
{{- '<|user_start|>' ~ before.text ~ text(message.content) ~ '<|user_end|>' -}}
{%- set before.text = '' -%}
{%- elif message.role == 'assistant' -%}
{{- '<|assistant_start|>' -}}
{%- if message.content is string -%}
<text>{{- message.content ~ '<|assistant_end|>' -}}</>
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'python_output' -%}
<python_output>{{- '<|output_start|>' ~ part.text ~ '<|output_end|>' -}}</>
{%- elif part.type == 'python' -%}
<python>{{- '<|python_start|>' ~ part.text ~ '<|python_end|>' -}}</>
{%- else -%}
<text>{{- part.text -}}</>
{%- endif -%}
{%- endfor -%}
<text>{{- '<|assistant_end|>' -}}</>
{%- endif -%}
{%- else -%}
{{- raise_exception('unknown role ' ~ message.role) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}
"""


def _qwen_pieces(messages: Sequence[Message]) -> Iterator[Piece]:
    for message in messages:
        if message.role != ASSISTANT:
            yield from _qwen_turn(f"{message.role}\n{message.text}")
            continue
        yield from _QWEN_OPENING
        separator = ""
        for part in message.parts:
            own = message.supervised and part.kind in LEARNED
            if part.kind == TEXT:
                yield Piece(part.text, supervised=own)
                separator = "\n"
            elif part.kind == CALL:
                call = json.dumps({"name": "python", "arguments": {"expression": part.text}}, ensure_ascii=False)
                yield Piece(f"{separator}<tool_call>\n{call}\n</tool_call>", supervised=own)
                yield _token("<|im_end|>", own)
            else:
                yield Piece("\n", supervised=own)
                yield from _qwen_turn(f"user\n<tool_response>\n{part.text}\n</tool_response>", own)
                yield from _QWEN_OPENING
                separator = ""
        yield _token("<|im_end|>", message.supervised)
        yield Piece("\n")


def _qwen_turn(text: str, own: bool = False) -> Iterator[Piece]:
    yield from (_token("<|im_start|>", own), Piece(text, supervised=own), _token("<|im_end|>", own))
    yield Piece("\n", supervised=own)


_QWEN_OPENING = (_token("<|im_start|>"), Piece("assistant\n"))

_QWEN_TEMPLATE = r"""{%- macro text(content) -%}
{{- content if content is string else content | map(attribute='text') | join -}}
{%- endmacro -%}
{%- for message in messages -%}
{%- if message.role in ('system', 'user') -%}
{{- '<|im_start|>' ~ message.role ~ '\n' ~ text(message.content) ~ '<|im_end|>\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' -}}
{%- if message.content is string -%}
<text>{{- message.content ~ '<|im_end|>' -}}</>
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'python_output' -%}
<python_output>{{- '\n<|im_start|>user\n<tool_response>\n' ~ part.text ~ '\n</tool_response><|im_end|>\n' -}}</>
{{- '<|im_start|>assistant\n' -}}
{%- elif part.type == 'python' -%}
{%- set after_text = not loop.first and loop.previtem.type == 'text' -%}
{%- set call = '<tool_call>\n{"name": "python", "arguments": {"expression": ' ~ part.text | tojson -%}
{%- set call = ('\n' if after_text else '') ~ call ~ '}}\n</tool_call><|im_end|>' -%}
<python>{{- call -}}</>
{%- else -%}
<text>{{- part.text -}}</>
{%- endif -%}
{%- endfor -%}
<text>{{- '<|im_end|>' -}}</>
{%- endif -%}
{{- '\n' -}}
{%- else -%}
{{- raise_exception('unknown role ' ~ message.role) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

STYLES = (
    Style(
        name="nanochat",
        tokens=CHAT_TOKENS,
        end="<|assistant_end|>",
        opening=(_token("<|assistant_start|>"),),
        pieces=_nanochat_pieces,
        template=_with_mask(_NANOCHAT_TEMPLATE),
    ),
    Style(
        name="qwen",
        tokens=("<|im_start|>", "<|im_end|>"),
        end="<|im_end|>",
        opening=_QWEN_OPENING,
        pieces=_qwen_pieces,
        template=_with_mask(_QWEN_TEMPLATE),
    ),
)
"""All styles, by precedence: a tokenizer's style is the first one whose tokens it has."""
