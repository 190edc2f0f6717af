"""A conversation in the terminal."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable
from dataclasses import replace

from efficientbench.basics.errors import ConfigError, GenerationError
from efficientbench.basics.foreign import plain_text
from efficientbench.chat.answers import Chat, Said, parts_of
from efficientbench.data_tools.chat.conversations import (
    ASSISTANT,
    CALL,
    RESULT,
    TEXT,
    USER,
    Message,
    RowError,
    read_prompt,
)
from efficientbench.generation.command import INTERRUPTED
from efficientbench.generation.sampling import Sampling
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.running.failures import ran_out_of_memory

COMMANDS = "clear starts anew; quit or exit (or Ctrl-D) ends"
_BETWEEN = {
    (TEXT, CALL): "[",
    (CALL, RESULT): " = ",
    (CALL, TEXT): "]",
    (RESULT, TEXT): "]",
    (RESULT, CALL): "][",
}
"""What stands between two pieces of an answer: a call is shown as [6*7 = 42]."""


class Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(self, chat: Chat, sampling: Sampling, max_new_tokens: int) -> None:
        """Begin without a message."""
        self.chat, self.sampling, self.max_new_tokens = chat, sampling, max_new_tokens
        self.messages: list[Message] = []

    def say(self, text: str) -> None:
        """Print the answer to a text as it comes, and add both to the conversation, unless the answer is empty.

        Raises:
            RowError: the text is empty, or has an invalid character.
            ConfigError: the conversation is longer than the model's positions.
            GenerationError: the model computed NaN or infinity.
        """
        [said] = read_prompt([{"role": USER, "content": text}])
        messages = [*self.messages, said]
        prompt = self.chat.prompt(messages)
        longest = self.chat.run.config.model.position.longest
        room = self.max_new_tokens if longest is None else min(self.max_new_tokens, longest - len(prompt))
        if room < 1:
            raise ConfigError(
                f"the conversation has {len(prompt):,} tokens, and the model {longest:,} positions: "
                "`clear` begins a new one"
            )
        # Each answer draws random numbers of its own.
        sampling = replace(self.sampling, seed=self.sampling.seed + len(messages))
        answer = self.chat.answer(self.chat.run.model, prompt, sampling, room)
        with contextlib.closing(answer):
            parts = parts_of(shown(answer))
        if parts:
            self.messages = [*messages, Message(ASSISTANT, parts)]


def shown(answer: Iterable[Said]) -> list[Said]:
    """Print an answer as it comes, and return it."""
    said: list[Said] = []
    before = TEXT
    try:
        for each in answer:
            said.append(each)
            if each.text:
                between = _BETWEEN.get((before, each.kind), "")
                print(between + plain_text(each.text), end="", flush=True)
                before = each.kind
    finally:
        print(_BETWEEN.get((before, TEXT), ""))
    return said


def chat(run: Chat, prompt: str | None, sampling: Sampling, max_new_tokens: int) -> int:
    """Answer `prompt`, or if it is None each line that is typed, and return the exit code.

    Raises:
        RowError, ConfigError: `prompt` cannot be answered, see `Conversation.say`.
    """
    for problem in run.warnings:
        print_stderr(f"warning: {problem}")
    conversation = Conversation(run, sampling, max_new_tokens)
    try:
        if prompt is not None:
            conversation.say(prompt)
        else:
            _talk(conversation)
    except KeyboardInterrupt:
        print()
        return INTERRUPTED
    except GenerationError as error:
        print(f"error: {run.name}, step {run.run.step:,}: {error}", file=sys.stderr)
        return 1
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        print("error: out of memory: a shorter conversation, or fewer --max-new-tokens, may fit", file=sys.stderr)
        return 1
    return 0


def _talk(conversation: Conversation) -> None:
    """Answer each line of stdin."""
    # Bytes that are no text become surrogates, which `read_prompt` refuses.
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    print(f"{conversation.chat.name}, step {conversation.chat.run.step:,}; {COMMANDS}")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print()
            return
        if text in ("quit", "exit"):
            return
        if text == "clear":
            conversation.messages = []
        elif text:
            try:
                conversation.say(text)
            except (RowError, ConfigError) as error:
                print(f"error: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                print("stopped: this answer and its question are no part of the conversation")
