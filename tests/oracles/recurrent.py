"""The recurrences as they are written, token by token, and transformers' recurrent layers in float64 throughout."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F


def recurrence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence as it is written, one token after another, in the inputs' dtype; arguments as of the kernel."""
    repeats = value.shape[2] // key.shape[2]
    query, key = (each.repeat_interleave(repeats, dim=2) for each in (query, key))
    if state is None:
        state = value.new_zeros(*value.shape[1:3], key.shape[3], value.shape[3])
    outputs = []
    for token, (q, k, learned, g) in enumerate(zip(query, key, value[..., None, :], decay, strict=True)):
        # A decay for each head, or for each channel of its key.
        state = g.exp().reshape(*state.shape[:2], -1, 1) * state
        if beta is not None:
            learned = beta[token][..., None, None] * (learned - k[..., None, :] @ state)
        state = state + k[..., :, None] @ learned
        outputs.append((q[..., None, :] @ state)[..., 0, :])
    return torch.stack(outputs), state


def inputs(rule: str, length: int, gates: str) -> list[torch.Tensor | None]:
    """Query, key, value, decay, beta and a state in float64: two rows, two key heads with two value heads each."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    query, key = (F.normalize(normal(length, 2, 2, 16), dim=-1) for _ in range(2))
    channels = (16,) if rule == "by channel" else ()
    decay = -F.softplus(normal(length, 2, 4, *channels)) * (20 if gates == "fast" else 0.3)
    beta = normal(length, 2, 4).sigmoid()
    if gates == "extreme":
        # Of ten tokens, two forget all, one almost all, two nothing; and three learn all, three nothing.
        share = torch.rand(decay.shape, generator=generator)
        for below, value in ((0.5, 0.0), (0.3, -900.0), (0.2, -math.inf)):
            decay = decay.masked_fill(share < below, value)
        share = torch.rand(beta.shape, generator=generator)
        beta = beta.masked_fill(share < 0.6, 0.0).masked_fill(share < 0.3, 1.0)
    learns = None if rule == "values" else beta
    return [query, key, normal(length, 2, 4, 8), decay, learns, normal(2, 4, 16, 8)]


def results(rule: object, given: list[torch.Tensor | None], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The rule's output, state and gradients, in float64."""
    assert callable(rule)
    own = [None if each is None else each.clone().to(dtype).requires_grad_() for each in given]
    out, state = rule(*own)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each) for each in (out, state)]
    ((out * weights[0]).sum() + (state * weights[1]).sum()).backward()
    names = ("query", "key", "value", "decay", "beta", "state before")
    found = {"out": out, "state": state}
    found |= {name: each.grad for name, each in zip(names, own, strict=True) if each is not None}
    return {name: each.detach().double().cpu() for name, each in found.items()}


EAGER = {"efficientbench.model.attention.recurrent.recurrence": recurrence}


def by_token(module: Any, function: str) -> AbstractContextManager[object]:
    """Let a module of transformers, whose rows come first, compute its rule by `recurrence` in float64."""

    def rule(query: Any, key: Any, value: Any, g: Any, beta: Any, **unused: object) -> tuple[torch.Tensor, None]:
        query, key = (module.l2norm(each.double()) for each in (query, key))
        query = query / math.sqrt(query.shape[-1])
        out, _ = recurrence(*(each.double().transpose(0, 1) for each in (query, key, value, g, beta)))
        return out.transpose(0, 1).to(value.dtype), None

    return mock.patch.object(module, function, rule)


def within(model: Any, context: Callable[[], Any]) -> Any:
    """Return the model, which computes in a context from now on."""
    forward = model.forward

    def inside(*arguments: Any, **keys: Any) -> Any:
        with context():
            return forward(*arguments, **keys)

    model.forward = inside
    return model


@contextlib.contextmanager
def throughout_in_float64(rule: Callable[[], Any] = contextlib.nullcontext) -> Iterator[None]:
    """Let the layers of a float64 model compute in float64 what they compute in float32 whatever they are in.

    `rule`: what else holds meanwhile, like `by_token`.
    """
    with (
        rule(),
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield
