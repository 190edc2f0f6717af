"""A run's model that answers conversations: messages become a prompt, and its tokens the parts of an answer."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import Quantization
from efficientbench.data_tools.chat.conversations import ASSISTANT, CALL, RESULT, TEXT, Message, Part
from efficientbench.data_tools.chat.record import ConversationRecord
from efficientbench.data_tools.chat.render import Renderer, make_renderer
from efficientbench.data_tools.tokens.manifest import load_record
from efficientbench.generation.calls import Calculator, find_calculator
from efficientbench.generation.generate import Emitted, generate
from efficientbench.generation.open_run import Opened, opened
from efficientbench.generation.sampling import Sampling
from efficientbench.generation.text_stream import TextStream
from efficientbench.running.trained import TrainedRun

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

STOP, LENGTH = "stop", "length"
"""Why an answer ends: the model ended it, or it reached its token limit."""

_KIND_AFTER = {
    "<|python_start|>": CALL,
    "<|python_end|>": TEXT,
    "<|output_start|>": RESULT,
    "<|output_end|>": TEXT,
}
"""Special token → the kind of the tokens after it."""


@dataclass(frozen=True)
class Said:
    """What one token adds to an answer."""

    kind: str
    """One of `PART_KINDS`."""
    text: str
    """Text that the token adds; empty for special tokens, and within a character."""
    finish: str | None = None
    """`STOP` or `LENGTH` where the answer ends."""
    sample: int = 0
    """The answer's number among those to one prompt."""


class StopText:
    """Ends a text before the first of some strings, which may lie over several of the pieces that arrive."""

    def __init__(self, strings: Sequence[str]) -> None:
        """Take the strings, none of them empty."""
        self.strings, self._held = strings, ""

    def add(self, text: str, whole: bool) -> tuple[str, bool]:
        """Return the text that no string can begin in any more, and whether a string was found behind it.

        `whole`: nothing follows that belongs to the text, so that nothing is held back.
        """
        self._held += text
        found = [place for each in self.strings if (place := self._held.find(each)) >= 0]
        kept = 0 if whole else max((self._begun(each) for each in self.strings), default=0)
        end = min(found, default=len(self._held) - kept)
        said, self._held = self._held[:end], self._held[end:]
        return said, bool(found)

    def _begun(self, string: str) -> int:
        """Return how many characters at the end of the held text begin a string."""
        return next((count for count in range(len(string) - 1, 0, -1) if self._held.endswith(string[:count])), 0)


@dataclass(frozen=True)
class Chat:
    """A chat model, and what turns conversations into its tokens and back."""

    name: str
    """The model's name, see `name_of`."""
    run: Opened
    renderer: Renderer
    calculator: Calculator | None
    warnings: tuple[str, ...]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens after which the model answers the user's last message, or continues the assistant's."""
        render = self.renderer.continued if messages[-1].role == ASSISTANT else self.renderer.prompt
        return render(messages).tolist()

    def answer(
        self,
        model: GPT,
        prompt: Sequence[int],
        sampling: Sampling,
        max_new_tokens: int,
        stops: Sequence[str] = (),
        samples: int = 1,
    ) -> Generator[Said, None, None]:
        """Yield an answer token by token, or several at once; `close` ends them.

        Args:
            model: the run's model, or a copy of it.
            prompt: the prompt's tokens, see `prompt`.
            sampling: how tokens are chosen.
            max_new_tokens: token limit of the answer, calls and results included.
            stops: strings before which the answer ends, where its text has one.
            samples: answers to the prompt.

        Raises:
            GenerationError: the model computed NaN or infinity.
        """
        lines = [_Line(self, prompt, stops) for _ in range(samples)]
        limits = (max_new_tokens, lines[0].stop, samples)
        for step in generate(model, [prompt], sampling, *limits, calculator=self.calculator):
            for emitted in step:
                if not lines[emitted.row.sample].ended:
                    yield lines[emitted.row.sample].add(emitted)
            if all(line.ended for line in lines):
                return


class _Line:
    """One of the answers to a prompt, whose tokens become text."""

    def __init__(self, chat: Chat, prompt: Sequence[int], stops: Sequence[str]) -> None:
        ids = chat.renderer.token_ids
        self.stop = {chat.renderer.end_id, chat.run.tokenizer.eod_id}
        self._kinds = {ids[name]: kind for name, kind in _KIND_AFTER.items() if name in ids}
        self._stream, self._until = TextStream(chat.run.tokenizer.decode, prompt), StopText(stops)
        self._kind, self.ended = TEXT, False

    def add(self, emitted: Emitted) -> Said:
        """Return what a token adds."""
        token, kind = emitted.token, self._kind
        text, found = self._stream.add(token), False
        whole = token in self._kinds or emitted.last
        if whole:
            text += self._stream.rest()
        if kind == TEXT:
            text, found = self._until.add(text, whole)
        finish = (STOP if token in self.stop else LENGTH) if emitted.last else None
        self.ended, self._kind = found or emitted.last, self._kinds.get(token, kind)
        return Said(kind, text, STOP if found else finish, emitted.row.sample)


@contextlib.contextmanager
def chat_opened(folder: Path, step: int | None = None, quantization: Quantization | None = None) -> Iterator[Chat]:
    """Open a run's folder to chat with its model; `quantization` as for `opened`.

    Raises:
        ConfigError, CheckpointError, DeviceError: as `opened`, or the run has learned no conversations.
        DataError: the tokenizer is damaged, or has no chat tokens.
    """
    trained = TrainedRun.read(folder)
    renderer = make_renderer(trained.tokenizer(), f"of {folder}")
    doubts = _check_learned(trained)
    with opened(folder, step, quantization=quantization) as run:
        calculator = find_calculator(renderer, run.tokenizer.decode)
        yield Chat(name_of(folder), run, renderer, calculator, (*run.warnings, *doubts))


def name_of(folder: Path) -> str:
    """Return the name of a run's model: its folder's name, or for a repeat that of the folder of all repeats."""
    path = folder.resolve()
    return path.parent.name if re.fullmatch(r"seed_\d+", path.name) else path.name


def _check_learned(run: TrainedRun) -> tuple[str, ...]:
    """Return doubts whether a run has learned conversations. Raises ConfigError: it has not."""
    job = run.job
    # An imported model may be a chat model, which only its author knows; every other objective learns conversations.
    if job.config.training.objective != "pretrain" or job.imported is not None:
        return ()
    manifests = [path for path in job.corpora if path.exists()]
    if any(load_record(path, ConversationRecord) is not None for path in manifests):
        return ()
    if len(manifests) == len(job.corpora):
        raise ConfigError(
            f"{run.folder} has learned text, and no conversations: make some (efficientbench-data chat MIXTURE.yaml), "
            f"train on them from here (training.objective=sft init.run={run.folder}), and chat with that run"
        )
    return (f"the tokens that {run.folder} learned are not here to tell whether they were conversations",)


def parts_of(said: Iterable[Said]) -> tuple[Part, ...]:
    """Return the parts of an answer, without calls that have no result, which conversations do not allow."""
    # Special tokens count as empty text, so that two calls never stand side by side.
    pieces = [
        Part(kind, text)
        for kind, group in itertools.groupby(said, lambda each: each.kind)
        if (text := "".join(each.text for each in group))
    ]
    kinds = [TEXT, *(piece.kind for piece in pieces), TEXT]
    return tuple(
        piece
        for piece, before, after in zip(pieces, kinds, kinds[2:], strict=False)
        if piece.kind == TEXT or (piece.kind, after) == (CALL, RESULT) or (piece.kind, before) == (RESULT, CALL)
    )
