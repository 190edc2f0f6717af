"""Encodes text as ids: with `tiktoken` if it gives a tokenizer's own ids, else with `tokenizers` itself."""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from efficientbench.basics.errors import first_line
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's split pattern, which `tokenizers` has built in."""

_SETTLED = re.compile(
    "[\u0000-\u06ff\u0900-\u09ff\u0e00-\u0eff\u1e00-\u20bf\u2100-\u2bff\u3000-\u312f\u3200-\ua48f\uac00-\ud7a3"
    "\uf900-\ufaff\ufe00-\ufe1f\uff00-\uffff\U0001f000-\U0001faff]*"
)
"""Matches text in scripts whose normal forms are the same in all Unicode versions since Python 3.10's, so that Python
and other libraries agree on whether it is normalized."""

HARD_STRINGS = (
    "Hello  world \n\n\n  a\t\tb \r\n c\r\rd \u00a0\u2003 e\u3000f\u0085g\u2028h\x1ci\x0b\x0cj ",
    "I'll we'VE they're IT'S 'tis don''t 'S 's\u017f 'LL\u017f K\u212a \u0130\u0131",
    "1 12 123 1234567890 3.14159 1,000,000 \u0663\u0664\u0665 \u216b \u00bd x\u00b2 \U0001d7d8 0x7fff",
    "cafe\u0301 caf\u00e9 A\u030a \u212b \u2126 \u1e9b\u0323 q\u0323\u0307 q\u0307\u0323 \u0344 \u0958 \ufb01 \u2001",
    "\u1100\u1161\u11a8 \uac01 \uac00\u11a8 \u0b47\u0b56 \u3046\u3099 \uff76\uff9e \U00011131\U00011127 \u0f73",
    "<|endoftext|><|im_start|>user\n<|im_end|><tool_call></s><s>[INST]<unk><|endoftext|>\u0301 <|endof text|>",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u043f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 \u05e9\u05dc\u05d5\u05dd\u05b0",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \u200b\ufeff\u00ad\u2060",
    "\x00\x01\x7f\ufffd\uffff\U0010ffff \ue000",
    "def f(x):\n\tif x != 0:\n\t\treturn {'a': [1, -2]}  # ***\n\n",
    " " * 300 + "x" + "\n" * 300 + "-" * 300 + "ab" * 300,
)
"""Texts on which engines are likely to differ: kinds of white space, digits, case, combining and decomposed characters,
names of special tokens, long runs, and characters without width."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Engine:
    """Encodes text. Can be pickled for another process."""

    folder: Path
    """The tokenizer's folder, for texts that only `tokenizers` itself can encode."""
    pattern: str | None
    """The regular expression with which tiktoken splits text; None if tiktoken cannot be used."""
    ranks: dict[bytes, int]
    """The id of every token by its bytes, for tiktoken; empty if it cannot be used."""
    reason: str | None
    """Why tiktoken cannot be used; None if it can."""
    normalizer: Any
    """The tokenizer's normalizer; None if it has none."""
    normalizer_is_nfc: bool
    """Whether the normalizer is plain NFC."""
    special: tuple[str, ...]
    """Names of special added tokens, which are ordinary text in a document."""
    matched: tuple[str, ...]
    """Names of other added tokens, which the tokenizer matches in text first."""

    @property
    def name(self) -> str:
        """The library that encodes, with its version."""
        library = "tokenizers" if self.pattern is None else "tiktoken"
        return f"{library} {version(library)}"

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text without lone surrogates, uint32 [tokens]. No special token is added."""
        if self.encoding is None or any(string in text for string in self.matched):
            return self._encode_with_tokenizers(text)
        normalized = self._normalize(text)
        if normalized is not text and any(string in normalized for string in self.matched):
            return self._encode_with_tokenizers(text)
        try:
            # tiktoken's `encode_to_numpy` looks for special tokens, and takes twice the time.
            return np.array(self.encoding.encode_ordinary(normalized), np.uint32)
        except BaseException as error:
            # tiktoken's regular expressions fail on some texts; the class of Rust's panic cannot be imported.
            if type(error).__name__ != "PanicException" and not isinstance(error, ValueError):
                raise
            return self._encode_with_tokenizers(text)

    def count_special(self, text: str) -> Counter[str]:
        """Count how often the names of special tokens occur in a text."""
        if not self.special or self._special_start not in text:
            return Counter()
        return Counter(self._special_pattern.findall(text))

    def _normalize(self, text: str) -> str:
        if self.normalizer is None or (self.normalizer_is_nfc and _is_nfc(text)):
            return text
        return self.normalizer.normalize_str(text)

    def _encode_with_tokenizers(self, text: str) -> np.ndarray:
        return np.array(self._tokenizer.encode_batch([text])[0], np.uint32)

    @cached_property
    def encoding(self) -> Any:
        """Tiktoken's `Encoding`; None if it cannot be used."""
        if self.pattern is None:
            return None
        return tiktoken.Encoding(str(self.folder), pat_str=self.pattern, mergeable_ranks=self.ranks, special_tokens={})

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return load_tokenizer(self.folder)

    @cached_property
    def _special_start(self) -> str:
        return os.path.commonprefix(self.special)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(string) for string in sorted(self.special, key=len, reverse=True)))


def _is_nfc(text: str) -> bool:
    """Return whether a text is certainly in normal form C, faster than by normalizing it."""
    return text.isascii() or (_SETTLED.fullmatch(text) is not None and unicodedata.is_normalized("NFC", text))


def choose_engine(tokenizer: TextTokenizer, folder: Path, sample: Iterable[str]) -> Engine:
    """Return the fastest engine that gives the tokenizer's own ids on `HARD_STRINGS` and on a sample of the input.

    If that is not tiktoken, log a warning with the reason. `folder` holds the saved tokenizer.
    """
    spec = tokenizer.spec
    pattern, ranks, reason = _tiktoken_parts(spec)
    engine = Engine(
        folder=folder,
        pattern=pattern,
        ranks=ranks,
        reason=reason,
        normalizer=tokenizer.backend.normalizer,
        normalizer_is_nfc=spec["normalizer"] == {"type": "NFC"},
        special=tuple(added["content"] for added in spec["added_tokens"] if added["special"]),
        matched=tuple(added["content"] for added in spec["added_tokens"] if not added["special"]),
    )
    if reason is None:
        difference = _difference(engine, tokenizer, [*HARD_STRINGS, *engine.special, *engine.matched, *sample])
        if difference is not None:
            engine = replace(engine, pattern=None, ranks={}, reason=difference)
    if engine.reason is not None:
        logger.warning("tokenizing with `tokenizers`, which is slower than tiktoken: %s", engine.reason)
    return engine


def _difference(engine: Engine, tokenizer: TextTokenizer, texts: list[str]) -> str | None:
    """Return the first difference between an engine and its tokenizer, or None."""
    for text, expected in zip(texts, tokenizer.encode_batch(texts), strict=True):
        try:
            ids = engine.encode(text).tolist()
        except ValueError as error:  # tiktoken does not understand the regular expression
            return first_line(error)
        if ids != expected:
            return f"the two give other ids for {text[:60]!r}"
    return None


def _tiktoken_parts(spec: dict[str, Any]) -> tuple[str | None, dict[bytes, int], str | None]:
    """Return tiktoken's pattern and ranks, or the reason why it cannot encode as this tokenizer does."""
    model = spec["model"]
    if model["type"] != "BPE" or model.get("dropout") or model.get("continuing_subword_prefix"):
        return None, {}, "its model is not plain byte-pair encoding"
    if model.get("end_of_word_suffix") or model.get("byte_fallback"):
        return None, {}, "its model is not byte-level"
    pattern = _pattern(spec["pre_tokenizer"])
    if pattern is None:
        return None, {}, "text is not split by one regular expression and cut into bytes"
    vocab: dict[str, int] = model["vocab"]
    table = {ord(character): byte for byte, character in enumerate(byte_characters())}
    tokens = byte_characters()
    for merge in model["merges"]:
        tokens.append(merge.replace(" ", "") if isinstance(merge, str) else merge[0] + merge[1])
    try:
        # Each character of the byte alphabet becomes the byte that it stands for.
        ranks = {token.translate(table).encode("latin-1"): vocab[token] for token in tokens}
    except (KeyError, UnicodeEncodeError):
        return None, {}, "its vocabulary is not byte-level"
    merged = list(map(vocab.__getitem__, tokens[256:]))
    # tiktoken merges any two neighbours that make a token, in the order of ids.
    if any(later <= earlier for earlier, later in zip(merged, merged[1:], strict=False)):
        return None, {}, "its merges are not in the order of their tokens' ids"
    if model.get("ignore_merges") and len(ranks) != len(vocab):
        return None, {}, "some of its tokens are not made by merging"
    return pattern, ranks, None


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """Return the regular expression that splits text before its bytes are merged; None if splitting does more."""
    parts = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {}])
    last = parts[-1]
    if last.get("type") != "ByteLevel" or last["add_prefix_space"]:
        return None
    if len(parts) == 1 and last["use_regex"]:
        return _GPT2_PATTERN
    if len(parts) != 2 or last["use_regex"] or parts[0]["type"] != "Split":
        return None
    split = parts[0]
    if (split["behavior"], split["invert"]) not in (("Isolated", False), ("Removed", True)):
        return None
    return split["pattern"].get("Regex")


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary: itself if it is visible."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
