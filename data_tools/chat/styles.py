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
from functools import cache
from string import Template

from efficientbench.data_tools.chat.conversations import ASSISTANT, CALL, LEARNED, RESULT, SYSTEM, TEXT, USER, Message

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
_QWEN_TOKENS = ("<|im_start|>", "<|im_end|>")
_SPECIAL = (*CHAT_TOKENS, *_QWEN_TOKENS)


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


def _cut(form: str, *texts: str) -> Iterator[Piece]:
    """Yield the pieces of a form: special tokens, and text, in which each `{}` stands for one of `texts`."""
    rest = iter(texts)
    for piece in _cuts(form):
        yield Piece(next(rest)) if piece.text == "{}" else piece


@cache
def _cuts(form: str) -> list[Piece]:
    cuts = re.split("({}|" + "|".join(map(re.escape, _SPECIAL)) + ")", form)
    return [Piece(each, is_token=each in _SPECIAL) for each in cuts if each]


def _learned(message: Message, kind: str, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a part of this kind with their mask, as `_marked` marks it in templates."""
    learned = message.supervised and kind in LEARNED
    return (Piece(each.text, each.is_token, learned) for each in pieces)


def _marked(kind: str, *expressions: str) -> str:
    """Return a template's lines that write a part of this kind, marked if it is learned."""
    begin, end = ("{%- generation -%}", "{%- endgeneration -%}") if kind in LEARNED else ("", "")
    return "\n".join(f"{begin}{{{{- {each} -}}}}{end}" for each in expressions)


def _template(begin: str, others: str, call: str, result: Sequence[str], opening: str, end: str, after: str) -> str:
    """Return a style's template: `_TEMPLATE` with the lines, the opening and the end that are the style's own."""
    return Template(_TEMPLATE).substitute(
        begin=begin,
        others=others,
        opening=repr(opening),
        answer=_marked(TEXT, f"message.content ~ '{end}'"),
        text=_marked(TEXT, "part.text"),
        call=call,
        result=_marked(RESULT, *result),
        end=_marked(TEXT, f"'{end}'"),
        after=after,
    )


_TEMPLATE = """{%- macro text(content) -%}
{{- content if content is string else content | map(attribute='text') | join -}}
{%- endmacro -%}
$begin{%- for message in messages -%}
$others
{%- elif message.role == 'assistant' -%}
{{- $opening -}}
{%- if message.content is string -%}
$answer
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'python_output' -%}
$result
{%- elif part.type == 'python' -%}
$call
{%- else -%}
$text
{%- endif -%}
{%- endfor -%}
$end
{%- endif -%}
$after{%- else -%}
{{- raise_exception('unknown role ' ~ message.role) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- $opening -}}{%- endif -%}
"""

_NANOCHAT_OPENING, _NANOCHAT_END = "<|assistant_start|>", "<|assistant_end|>"


def _nanochat_pieces(messages: Sequence[Message]) -> Iterator[Piece]:
    forms = {TEXT: "{}", CALL: "<|python_start|>{}<|python_end|>", RESULT: "<|output_start|>{}<|output_end|>"}
    yield from _cut("<|bos|>")
    before = ""
    for message in messages:
        if message.role == SYSTEM:
            before = message.text + "\n\n"
        elif message.role == USER:
            yield from _cut("<|user_start|>{}<|user_end|>", before + message.text)
            before = ""
        else:
            yield from _cut(_NANOCHAT_OPENING)
            for part in message.parts:
                yield from _learned(message, part.kind, _cut(forms[part.kind], part.text))
            yield from _learned(message, TEXT, _cut(_NANOCHAT_END))


_NANOCHAT_TEMPLATE = _template(
    begin="""{{- '<|bos|>' -}}
{%- set before = namespace(text='') -%}
""",
    others=r"""{%- if message.role == 'system' -%}
{%- set before.text = text(message.content) ~ '\n\n' -%}
{%- elif message.role == 'user' -%}
{{- '<|user_start|>' ~ before.text ~ text(message.content) ~ '<|user_end|>' -}}
{%- set before.text = '' -%}""",
    call=_marked(CALL, "'<|python_start|>' ~ part.text ~ '<|python_end|>'"),
    result=("'<|output_start|>' ~ part.text ~ '<|output_end|>'",),
    opening=_NANOCHAT_OPENING,
    end=_NANOCHAT_END,
    after="",
)

_QWEN_OPENING, _QWEN_END = "<|im_start|>assistant\n", "<|im_end|>"


def _qwen_pieces(messages: Sequence[Message]) -> Iterator[Piece]:
    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    for message in messages:
        if message.role != ASSISTANT:
            yield from _cut(turn, message.role, message.text)
            continue
        yield from _cut(_QWEN_OPENING)
        separator = ""
        for part in message.parts:
            if part.kind == TEXT:
                pieces = _cut("{}", part.text)
            elif part.kind == CALL:
                call = json.dumps({"name": "python", "arguments": {"expression": part.text}}, ensure_ascii=False)
                pieces = _cut("{}<tool_call>\n{}\n</tool_call><|im_end|>", separator, call)
            else:
                result = f"<tool_response>\n{part.text}\n</tool_response>"
                pieces = _cut(f"\n{turn}{_QWEN_OPENING}", "user", result)
            yield from _learned(message, part.kind, pieces)
            separator = "\n" if part.kind == TEXT else ""
        yield from _learned(message, TEXT, _cut(_QWEN_END))
        yield Piece("\n")


_QWEN_TEMPLATE = _template(
    begin="",
    others=r"""{%- if message.role in ('system', 'user') -%}
{{- '<|im_start|>' ~ message.role ~ '\n' ~ text(message.content) ~ '<|im_end|>\n' -}}""",
    call=r"""{%- set after_text = not loop.first and loop.previtem.type == 'text' -%}
{%- set call = '<tool_call>\n{"name": "python", "arguments": {"expression": ' ~ part.text | tojson -%}
{%- set call = ('\n' if after_text else '') ~ call ~ '}}\n</tool_call><|im_end|>' -%}
"""
    + _marked(CALL, "call"),
    result=(
        r"'\n<|im_start|>user\n<tool_response>\n' ~ part.text ~ '\n</tool_response><|im_end|>\n'",
        repr(_QWEN_OPENING),
    ),
    opening=_QWEN_OPENING,
    end=_QWEN_END,
    after=r"""{{- '\n' -}}
""",
)

STYLES = (
    Style(
        name="nanochat",
        tokens=CHAT_TOKENS,
        end=_NANOCHAT_END,
        opening=tuple(_cut(_NANOCHAT_OPENING)),
        pieces=_nanochat_pieces,
        template=_NANOCHAT_TEMPLATE,
    ),
    Style(
        name="qwen",
        tokens=_QWEN_TOKENS,
        end=_QWEN_END,
        opening=tuple(_cut(_QWEN_OPENING)),
        pieces=_qwen_pieces,
        template=_QWEN_TEMPLATE,
    ),
)
"""All styles, by precedence: a tokenizer's style is the first one whose tokens it has."""
