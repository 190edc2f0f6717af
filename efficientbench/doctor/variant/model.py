"""Checks of a variant's model in this process: one rank, on the CPU, in float32.

B = batch, S = sequence, V = vocabulary.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from efficientbench.architecture.variant import missing
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import cache_bytes, count_parameters, flops_per_token
from efficientbench.devices.cpu import CPU
from efficientbench.devices.loading import absent, loading
from efficientbench.doctor.check import Check

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


# FlopCounter counts the FLOPs of every matrix product and attention kernel that torch dispatches.
#
# torch's own counter knows neither products that add in place, nor the CPU's attention, nor grouped products, and
# counts 0 for an operation that it does not know. This one raises an error.


PRODUCT = re.compile(r"mm|matmul|attention|conv|einsum|linear")
"""Names of operations that may multiply matrices. (`dot` multiplies vectors: the masked sum of the losses.)"""
aten = torch.ops.aten


def _plain(args: tuple[Any, ...], out: Any) -> int:
    return 2 * args[0].numel() * args[1].shape[-1]


def _linear(args: tuple[Any, ...], out: Any) -> int:
    return 2 * args[0].numel() * args[1].shape[0]


def _adding(args: tuple[Any, ...], out: Any) -> int:
    return _plain(args[1:], out)


def _triangular(args: tuple[Any, ...], out: Any) -> int:
    """Count the solution of a triangular system [n, n] for each column."""
    return int(out.numel() * args[0].shape[-1])


def _attention(args: tuple[Any, ...], out: Any) -> int:
    """Count scores and their product with the values; half of the square where the kernel is causal."""
    query, key, value, _, causal = (*args, False, False)[:5] if len(args) < 5 else args[:5]
    pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return pairs * (query.shape[3] + value.shape[3]) * 2 // (2 if causal else 1)


def _attention_backward(args: tuple[Any, ...], out: Any) -> int:
    """Count the scores again, then the gradients of values, probabilities, queries and keys."""
    _, query, key, value, _, _, _, causal = args[:8]
    pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return pairs * (3 * query.shape[3] + 2 * value.shape[3]) * 2 // (2 if causal else 1)


FORMULAS: dict[Any, Callable[[tuple[Any, ...], Any], int]] = {
    aten.mm: _plain,
    aten.bmm: _plain,
    aten.addmm: _adding,
    aten.addmm_: _adding,
    aten.baddbmm: _adding,
    aten.baddbmm_: _adding,
    aten.linalg_solve_triangular: _triangular,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


# Not in every build, not in torch 2.6.
if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    FORMULAS[torch.ops.mkldnn._linear_pointwise] = _linear
if hasattr(aten, "_grouped_mm"):
    FORMULAS[aten._grouped_mm] = _plain


class UncountedError(Exception):
    """An operation that may be a product of matrices has no formula."""


class FlopCounter(TorchDispatchMode):
    """Adds the FLOPs of every product in its `with` block to `total`.

    Raises:
        UncountedError: an operation may be a product, and no formula is known for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **kwargs or {})
        formula = FORMULAS.get(function.overloadpacket)
        if formula is not None:
            self.total += formula(args, out)
        else:
            name = function.overloadpacket.__name__
            if PRODUCT.search(name):
                raise UncountedError(f"{name}: no formula counts its FLOPs")
        return out


ROUNDING = 1e-5
"""Largest difference of logits, relative to the largest logit, that the order of sums explains."""
BATCH = 2
PROMPTS = 5, 3
"""Prompt lengths of the two rows that are decoded, in tokens."""
DECODED = 20
"""Tokens that are decoded behind the prompts."""


def model_checks(config: RunConfig) -> Iterator[Check]:
    """Check what the model computes: causality, lengths, decoding, counts, gradients; stop where it cannot be built."""
    # Weights large enough that every part of the model shows in the logits.
    config = config.changed("model", init_std=0.2)
    with _one_rank() as device:
        try:
            tokens, model = _tokens(config), _built(config, device)
            whole = _logits(model, tokens)
        except Exception as error:  # Code of others fails in any way.
            yield Check("forward", False, f"{type(error).__name__}: {error}")
            return
        yield _causality(model, tokens, whole)
        yield _lengths(model, tokens, whole)
        yield _decoding(model, config, tokens, whole)
        yield _parameters(model, config)
        yield _flops(model, config, tokens)
        yield from _trains(config, device, tokens)


@contextlib.contextmanager
def _one_rank() -> Iterator[torch.device]:
    """Prepare the CPU, and make a world of one rank with Megatron's process groups."""
    cpu = CPU()
    # Megatron logs at length which of its modules it does not know.
    logging.getLogger("megatron").setLevel(logging.ERROR)
    with loading():
        device = cpu.prepare(0)
        with absent(*cpu.needless):
            from efficientbench.training import groups

    with groups.one_rank(cpu.backend):
        yield device


def _built(config: RunConfig, device: torch.device) -> GPT:
    from efficientbench.model.gpt import build_stages

    [model] = build_stages(config, device)
    return model


def _tokens(config: RunConfig) -> torch.Tensor:
    """Return random tokens [B, S + 1], always the same."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(config.model.vocab_size, (BATCH, config.training.seq_len + 1), generator=generator)


def _logits(model: GPT, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits [B, S, V] of tokens [B, S + 1] without the last."""
    with torch.no_grad():
        return model(tokens[:, :-1])


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def _causality(model: GPT, tokens: torch.Tensor, whole: torch.Tensor) -> Check:
    """Change one token, and compare the logits before it."""
    length = whole.shape[1]
    for position in (1, length // 2, length - 1):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % whole.shape[2]
        logits = _logits(model, changed)
        distance = _distance(logits[:, :position], whole[:, :position])
        if not distance < ROUNDING:
            return Check("causality", False, f"token {position} changes logits before it, by {distance:.1e} of them")
        if _distance(logits[:, position:], whole[:, position:]) == 0:
            return Check("causality", False, f"no logits from token {position} on depend on it")
    return Check("causality", True, "a changed token leaves all logits before it")


def _lengths(model: GPT, tokens: torch.Tensor, whole: torch.Tensor) -> Check:
    """Compare the logits of shorter sequences, odd lengths among them, with those of the full sequence."""
    lengths = [length for length in (1, 7, 33) if length < whole.shape[1]]
    for length in lengths:
        try:
            distance = _distance(_logits(model, tokens[:, : length + 1]), whole[:, :length])
        except Exception as error:  # Code of others fails in any way.
            return Check("lengths", False, f"{length} tokens: {type(error).__name__}: {error}")
        if not distance < ROUNDING:
            return Check("lengths", False, f"the first {length} tokens alone have other logits, by {distance:.1e}")
    return Check("lengths", True, f"{', '.join(map(str, lengths))} tokens have the logits of a longer sequence")


def _decoding(model: GPT, config: RunConfig, tokens: torch.Tensor, whole: torch.Tensor) -> Check:
    """Decode rows of different lengths token by token, and compare their logits with those of full sequences."""
    from efficientbench.model.cache import Cache

    room = whole.shape[1]
    if reason := missing(lambda: cache_bytes(config.model, room, "fp32")):
        return Check("decoding", True, f"n/a: {reason}")
    lengths, rows, worst = torch.tensor(PROMPTS), torch.arange(BATCH), 0.0
    try:
        cache = Cache(model, BATCH, room)
        with torch.no_grad(), cache.bound():
            cache.counts.copy_(lengths)
            # The shorter row is padded with tokens that do not count.
            logits = model(tokens[:, : max(PROMPTS)], only=lengths - 1)[:, 0]
            for _ in range(DECODED):
                worst = max(worst, _distance(logits, whole[rows, cache.lengths + cache.counts - 1]))
                cache.advance()
                logits = model(tokens[rows, cache.lengths][:, None])[:, 0]
    except Exception as error:  # Code of others fails in any way.
        return Check("decoding", False, f"{type(error).__name__}: {error}")
    if not worst < ROUNDING:
        return Check("decoding", False, f"tokens that continue from a state have other logits, by {worst:.1e}")
    counted, wanted = cache.bytes, BATCH * cache_bytes(config.model, room, "fp32")
    sizes = f"{counted:,} B for {BATCH} sequences of {room} tokens, by formula {wanted:,}"
    return Check("decoding", counted == wanted, f"{DECODED} tokens have the logits of whole sequences; {sizes}")


def _parameters(model: GPT, config: RunConfig) -> Check:
    counted = sum(parameter.numel() for parameter in model.parameters())
    if reason := missing(lambda: count_parameters(config.model)):
        return Check("parameters", True, f"{counted:,}; n/a by formula: {reason}")
    wanted = count_parameters(config.model).total
    return Check("parameters", counted == wanted, f"{counted:,}, by formula {wanted:,}")


def _flops(model: GPT, config: RunConfig, tokens: torch.Tensor) -> Check:
    """Count the FLOPs of a forward pass: a formula that gives more would claim work that is not done."""
    if reason := missing(lambda: flops_per_token(config.model, config.training.seq_len)):
        return Check("FLOPs", True, f"n/a by formula: {reason}")
    try:
        with FlopCounter() as counter:
            _logits(model, tokens)
    except UncountedError as error:
        return Check("FLOPs", True, f"not counted: {error}")
    counted = counter.total / (BATCH * config.training.seq_len)
    wanted = flops_per_token(config.model, config.training.seq_len).forward
    found = f"{counted:,.0f} a token in a forward pass, by formula {wanted:,} ({counted / wanted:.2f} times as many)"
    return Check("FLOPs", counted > 0.999 * wanted, found)


def _trains(config: RunConfig, device: torch.device, tokens: torch.Tensor) -> Iterator[Check]:
    """Check that all parameters get finite gradients other than 0, and that a second model gets the same ones."""
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.update.optimizer import wrap_data_parallel

    gradients: list[dict[str, torch.Tensor]] = []
    for _ in range(2):
        model = _built(config, device)
        labels = tokens[:, 1:]
        wrap_data_parallel(model, config)(tokens[:, :-1], labels, torch.ones_like(labels)).backward()
        parameters: dict[str, Any] = dict(global_parameters(model))
        gradients.append({name: each.main_grad.clone() for name, each in parameters.items()})
    first, second = gradients
    broken = [name for name, each in first.items() if not each.isfinite().all()]
    unused = [name for name, each in first.items() if not each.any()]
    wrong = [f"not finite: {', '.join(broken)}"] * bool(broken) + [f"none: {', '.join(unused)}"] * bool(unused)
    yield Check("gradients", not wrong, "; ".join(wrong) or f"finite and not zero in all {len(first)} parameters")
    differing = [name for name in first if not torch.equal(first[name], second[name])]
    same = "a second model has the same gradients to the last bit"
    yield Check("determinism", not differing, f"other gradients: {', '.join(differing)}" if differing else same)
