"""One batch of prompts in a model's cache: prefill, then decode one token of each row per step.

B = rows, V = vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F

from efficientbench.config.layout import padded_vocab_size
from efficientbench.model.cache import Cache

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

SHORTEST_REACH = 256
"""The fewest positions that a decoding step reads, unless the cache has room for fewer."""

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(tokens [B, S], each row's index of the token whose logits are wanted [B]) → this rank's logits [B, 1, V / tp]."""


class Decoder:
    """The rows of a batch, which may differ in length."""

    def __init__(self, model: GPT, prompts: Sequence[Sequence[int]], room: int, step: Forward | None = None) -> None:
        """Allocate the cache.

        Args:
            model: the model, in evaluation mode.
            prompts: the prompt tokens of each row, one or more.
            room: how many new tokens a row may get.
            step: computes a decoding step, for example the compiled model; None: the model itself.
        """
        self.model, self.prompts = model, prompts
        self.longest = max(map(len, prompts))
        """Tokens of the longest row."""
        self.cache = Cache(model, len(prompts), self.longest + room)
        self.device = self.cache.lengths.device
        # Not `step or self._forward`: an object that refers to itself keeps its cache until the garbage collector runs.
        self._compiled = step

    def _forward(self, tokens: torch.Tensor, only: torch.Tensor) -> torch.Tensor:
        # On a CPU, the torch function mode that stands in for torch.cuda would slow every call, and no call needs it.
        plain = torch._C.DisableTorchFunction() if self.device.type == "cpu" else contextlib.nullcontext()
        with plain:
            logits: torch.Tensor = self.model(tokens, only=only)
        return logits

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Let the model's forward pass continue from this batch's cache."""
        with self.cache.bound():
            yield

    @torch.no_grad()
    def prefill(self) -> torch.Tensor:
        """Compute the prompts; return the logits of each row's first new token [B, V]."""
        counts = torch.tensor([len(prompt) for prompt in self.prompts])
        tokens = torch.zeros(len(self.prompts), self.longest, dtype=torch.int64)
        for row, prompt in enumerate(self.prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        self.cache.counts.copy_(counts)
        logits = self._forward(tokens.to(self.device), self.cache.counts - 1)
        self.cache.advance()
        return whole_logits(self.model, logits)[:, 0]

    @torch.no_grad()
    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Add a token to each row; return the logits of the next token [B, V]."""
        self.longest += 1
        self.cache.reach = reach(self.longest, self.cache.tokens)
        given = torch.tensor(tokens)[:, None].to(self.device)
        logits = (self._compiled or self._forward)(given, torch.zeros_like(self.cache.lengths))
        self.cache.advance()
        return whole_logits(self.model, logits)[:, 0]

    def rewind(self) -> None:
        """Return to the end of the prompts, to measure the same steps again.

        The cache of later tokens stays and is overwritten: the steps read as many bytes, but other numbers.
        """
        self.longest = max(map(len, self.prompts))
        self.cache.lengths.copy_(torch.tensor([len(prompt) for prompt in self.prompts]))

    def all_end(self, here: bool) -> bool:
        """Return whether all ranks have ended: ranks that share experts take part in every step of each other."""
        if self.model.expert_group is None:
            return here
        ended = torch.tensor([int(here)], device=self.device)
        dist.all_reduce(ended, op=dist.ReduceOp.MIN, group=self.model.expert_group)
        return bool(ended)

    def expand(self, copies: int) -> None:
        """Replace each row by `copies` of it."""
        self.cache.expand(copies)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.cache.select(torch.tensor(rows, device=self.device))


def compiled_step(model: GPT) -> Forward:
    """Return a decoding step as one compiled graph, compiled anew for each reach, batch and room.

    Discard earlier compiled graphs, since torch keeps only a few of one function.
    """
    torch.compiler.reset()

    def step(tokens: torch.Tensor, only: torch.Tensor) -> torch.Tensor:
        return model(tokens, only=only)

    return torch.compile(step, fullgraph=True, dynamic=False)


def whole_logits(model: GPT, logits: torch.Tensor) -> torch.Tensor:
    """Gather the logits [B, S, V / tp] of the tensor-parallel ranks → [B, S, V]."""
    group, vocabulary = model.tp_group, model.unpadded_vocab_size
    if group.size() == 1:
        return logits
    # The last ranks hold rows that only pad the vocabulary, and return no logits for them.
    width = padded_vocab_size(vocabulary, group.size()) // group.size()
    part = F.pad(logits, (0, width - logits.shape[2])).contiguous()
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part, group=group)
    return torch.cat(parts, dim=2)[..., :vocabulary]


def reach(tokens: int, room: int) -> int:
    """Return how many positions to read for rows of up to `tokens` tokens: a power of two, at most `room`.

    Few different numbers, so that a step is compiled only a few times.
    """
    return min(max(1 << (tokens - 1).bit_length(), SHORTEST_REACH), room)
