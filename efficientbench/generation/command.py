"""`efficientbench generate`: continue the prompts of the command line, and print the text as it is generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from efficientbench.basics.errors import ConfigError, GenerationError, LackOfMemoryError
from efficientbench.basics.foreign import read_text
from efficientbench.devices.registry import find_device
from efficientbench.generation.generate import Emitted, check_lengths, generate
from efficientbench.generation.memory import Case, batch_that_fits, usable_bytes
from efficientbench.generation.on_ranks import Generation
from efficientbench.generation.open_run import Opened, opened
from efficientbench.generation.text_stream import TextStream
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.running.failures import ran_out_of_memory


def read_prompts(prompt: str | None, file: Path | None) -> list[str]:
    """Return the prompts: `prompt`, the lines of a file, or one empty prompt.

    Raises ConfigError: both are set, the prompt is not UTF-8, or the file cannot be read or has no prompt.
    """
    if prompt is not None and file is not None:
        raise ConfigError("--prompt and --file: give one of them")
    if file is None:
        text = prompt or ""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError("--prompt: it is no UTF-8 text") from None
        return [text]
    try:
        lines = [line.removesuffix("\r") for line in read_text(file).split("\n") if line.strip()]
    except OSError as error:
        raise ConfigError(f"--file: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--file: {file} is no UTF-8 text: {error.reason} at byte {error.start}") from None
    if not lines:
        raise ConfigError(f"--file: {file} has no prompt: write one on each line")
    return lines


Write = Callable[[str], object]
"""Writes a text at once."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def generate_text(request: Generation) -> int:
    """Continue texts with a run's model in this process, print the texts, and return the exit code.

    Raises:
        ConfigError, CheckpointError, DataError, DeviceError: see `opened` and `check_lengths`.
    """
    folder = request.folder
    with opened(folder, request.model.step, quantization=request.model.quantization) as run:
        for problem in run.warnings:
            print_stderr(f"warning: {problem}")
        try:
            print_texts(run, request, partial(print, end="", flush=True))
        except KeyboardInterrupt:
            return INTERRUPTED
        except GenerationError as error:
            print_stderr(f"error: {folder}, step {run.step:,}: {error}")
            return 1
        except LackOfMemoryError as error:
            print_stderr(f"error: {error}")
            return 1
    return 0


def print_texts(run: Opened, request: Generation, write: Write, stops: Callable[[], bool] = lambda: False) -> bool:
    """Continue the texts of a request, and write the texts, also unfinished ones after a stop or an error.

    Return whether `stops`, which is asked after each token, ended the generation. All ranks call this together.

    Raises:
        ConfigError: see `check_lengths`.
        GenerationError: the model computed NaN or infinity.
        LackOfMemoryError: out of memory; the message names the largest batch that fits.
    """
    prompts = tokenized(run, request.texts, request.max_new_tokens)
    stop = [run.tokenizer.eod_id]
    steps = generate(run.model, prompts, request.sampling, request.max_new_tokens, stop, batch=request.batch)
    screen = Screen(run.tokenizer.decode, request.texts, prompts, write)
    try:
        for emitted in steps:
            screen.show(emitted)
            if stops():
                screen.close()
                return True
    except (Exception, KeyboardInterrupt) as error:
        full = isinstance(error, Exception) and ran_out_of_memory(error)
        # After an OSError (a closed pipe, a full disk) nothing more can be written.
        if full or not isinstance(error, OSError):
            screen.close()
        if not full:
            raise
        case = Case(max(map(len, prompts)), min(request.batch, len(prompts)), request.max_new_tokens)
        usable = usable_bytes(find_device(run.config.device, trains=False), request.model.tp)
        hint = batch_that_fits(run.config, case, usable, run.form)
        raise LackOfMemoryError(f"out of memory with {case.batch} prompts at once: {hint}") from error
    return False


def tokenized(run: Opened, texts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
    """Return the tokens of prompts. Raises ConfigError: see `check_lengths`."""
    # An empty prompt begins as a document does: after the token that ends the previous document.
    prompts = [tokens or [run.tokenizer.eod_id] for tokens in run.tokenizer.encode_batch(list(texts))]
    check_lengths(run.config.model, prompts, max_new_tokens)
    return prompts


class Screen:
    """Prints each prompt with its continuation: a single one token by token, several as each is complete."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        texts: Sequence[str],
        prompts: Sequence[Sequence[int]],
        write: Write,
    ) -> None:
        """Take the tokenizer's `decode`, the prompts as text and as tokens, and what writes to the screen."""
        self.texts, self._write, self.alone = texts, write, len(texts) == 1
        self.streams = [TextStream(decode, prompt) for prompt in prompts]
        self.parts: list[list[str]] = [[] for _ in texts]
        self.ended = [False] * len(texts)
        self.printed = 0
        """How many of several continuations were printed, in the order of the prompts."""
        if self.alone:
            self._write(texts[0])

    def show(self, emitted: Sequence[Emitted]) -> None:
        """Add the tokens of one step, and print what can be printed."""
        for each in emitted:
            number = each.row.prompt
            text = self.streams[number].add(each.token)
            text += self.streams[number].rest() if each.last else ""
            self.parts[number].append(text)
            self.ended[number] = each.last
            if self.alone:
                self._write(text + "\n" * each.last)
        while not self.alone and self.printed < len(self.texts) and self.ended[self.printed]:
            self._write("".join(self._block(self.printed)))
            self.printed += 1

    def close(self) -> None:
        """Print the unfinished continuations as far as they were generated."""
        if self.alone:
            self._write(self.streams[0].rest() + "\n")
            return
        for number in range(self.printed, len(self.texts)):
            self.parts[number].append(self.streams[number].rest())
            self._write("".join(self._block(number)))

    def _block(self, number: int) -> Iterator[str]:
        yield f"--- {number + 1} of {len(self.texts)}\n"
        yield self.texts[number]
        yield from self.parts[number]
        yield "\n"
