"""Turn rows into token ids: the tokenizer's chat template writes them, and no text becomes a special token."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from efficientbench.data_tools.rows import RowError
from efficientbench.finetuning.examples.rows import Row

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template for a tokenizer that has none."""
_PRIVATE = range(0xE000, 0xF900)
"""Unicode's characters for private use, one of which marks a place in a text."""

Message = Mapping[str, Any]


class RowEncoder:
    """Encodes rows with one tokenizer. Names of special tokens in a row's texts stay text, as for `data chat`."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the special tokens of a tokenizer, which has a chat template."""
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self._ids = {token.content: number for number, token in added if token.special and token.content}
        # A name may begin with another one.
        names = sorted(self._ids, key=len, reverse=True)
        self._name = re.compile(f"({'|'.join(map(re.escape, names))})") if names else re.compile("(?!)")

    def __call__(self, row: Row) -> tuple[list[int], list[bool]]:
        """Return a row's tokens and its mask of answers; prompt and answer are encoded separately, as at generation.

        Raises:
            RowError: the template refuses the row or writes earlier turns anew; or the row's texts name special
                tokens, and template or tokenizer does not allow to keep them text.
        """
        ids: list[int] = []
        learned: list[bool] = []
        done = ""
        messages, hidden = self._hidden(row.messages)
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._text(messages[:number], True)
            whole = self._text(messages[: number + 1], False)
            if not prompt.startswith(done) or not whole.startswith(prompt):
                raise RowError(
                    f"the tokenizer's chat template writes earlier turns anew when message {number + 1} is added, so "
                    "that answers cannot be told apart: keep the last answer alone"
                )
            if hidden and _restored(whole, hidden) != self._text(row.messages[: number + 1], False):
                raise RowError("its texts name special tokens, which the chat template does not write as they are")
            for text, is_answer in ((prompt[len(done) :], False), (whole[len(prompt) :], True)):
                part = self._apart(text, hidden) if hidden else self._encoded(text)
                ids += part
                learned += [is_answer and message.get("loss_weight") != 0] * len(part)
            done = whole
        return ids, learned

    def _hidden(self, messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, str]]:
        """Return messages with a placeholder for each name of a special token, and the names by placeholder."""
        texts = "".join(message["content"] for message in messages)
        names = sorted(set(self._name.findall(texts)))
        if not names:
            return messages, {}
        mark = next(mark for code in _PRIVATE if (mark := chr(code)) not in texts)
        placeholders = {name: f"{mark}{number}{mark}" for number, name in enumerate(names)}
        hidden = [
            {**message, "content": self._name.sub(lambda found: placeholders[found[0]], message["content"])}
            for message in messages
        ]
        return hidden, {placeholder: name for name, placeholder in placeholders.items()}

    def _text(self, messages: Sequence[Message], asks: bool) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=asks)
        except Exception as error:  # a foreign template may raise anything
            raise RowError(f"the tokenizer's chat template refuses it: {error}") from None
        return text

    def _apart(self, text: str, hidden: Mapping[str, str]) -> list[int]:
        """Encode the template's special tokens as such, and the texts between them as text, hidden names included."""
        without = _restored(text, dict.fromkeys(hidden, ""))
        # Tokenizers exist that write a blank at each beginning, or strip the text beside a special token.
        if self._pieces(without, {}) != self._encoded(without):
            raise RowError("its texts name special tokens, and this tokenizer does not encode texts piece by piece")
        return self._pieces(text, hidden)

    def _pieces(self, text: str, hidden: Mapping[str, str]) -> list[int]:
        ids: list[int] = []
        for place, piece in enumerate(self._name.split(text)):
            ids += [self._ids[piece]] if place % 2 else self._encoded(_restored(piece, hidden), True)
        return ids

    def _encoded(self, text: str, as_text: bool = False) -> list[int]:
        """Return a text's ids; `as_text`: names of special tokens are text."""
        found = self.tokenizer(text, add_special_tokens=False, split_special_tokens=as_text)
        return found["input_ids"]


def _restored(text: str, hidden: Mapping[str, str]) -> str:
    for placeholder, name in hidden.items():
        text = text.replace(placeholder, name)
    return text
