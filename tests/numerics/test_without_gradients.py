"""Where nothing is differentiated, layers are computed by a shorter way, to the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles.oracle import build, text
from support.configs import ATTENTIONS, EVERY_KEY, tiny, tiny_model
from torch.overrides import TorchFunctionMode

pytestmark = pytest.mark.usefixtures("single_rank")

AROUND = 2
"""Autograd functions that a decoding step calls before its layers and after them, however many there are."""


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [*ATTENTIONS, "relative", "moe", "nanochat", EVERY_KEY])
def test_logits_equal_those_of_a_differentiated_pass(name: str, dtype: str) -> None:
    config = tiny_model(name, "model.init_std=0.2", f"training.dtype={dtype}")
    model, tokens = build(config).eval(), text(config, config.training.seq_len)
    differentiable = model(tokens)
    assert differentiable.requires_grad
    with torch.no_grad():
        assert torch.equal(model(tokens), differentiable)


@pytest.mark.parametrize("run", ["gqa_1.5B", "mla_1.5B", "nanochat_d12"])
def test_the_layers_of_a_decoding_step_call_no_autograd_function(run: str) -> None:
    from efficientbench.generation.decoder import Decoder

    model = build(tiny(run)).eval()
    decoder = Decoder(model, [[3, 4, 5]], room=4)
    with decoder.bound():
        decoder.prefill()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            decoder.step([6])
    names = [event.name for event in profile.events()]
    assert "aten::bmm" in names
    functions = _names(torch.autograd.Function)
    called = [name for name in names if name in functions]
    assert len(called) <= AROUND, called


@pytest.mark.parametrize("differentiated", [True, False])
def test_the_bias_is_added_by_the_matrix_product(differentiated: bool) -> None:
    sums = {}
    for bias in ("true", "false"):
        config = tiny("gqa_1.5B", f"model.attention.qkv_bias={bias}")
        model, tokens = build(config).eval(), text(config, config.training.seq_len)
        with (
            torch.set_grad_enabled(differentiated),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        ):
            model(tokens)
        sums[bias] = [event.name for event in profile.events() if event.name in ("aten::add", "aten::add_")]
    assert sums["true"] == sums["false"]


def _names(kind: type) -> set[str]:
    """The names of all classes that derive from one."""
    return {each for child in kind.__subclasses__() for each in (child.__name__, *_names(child))}


class Calls(TorchFunctionMode):
    """Counts what passes a mode, as the one behind the names of torch.cuda, which slows each call down."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_decoding_step_on_a_cpu_enters_no_dispatch_mode() -> None:
    from efficientbench.generation.decoder import Decoder

    model = build(tiny("gqa_1.5B")).eval()
    decoder = Decoder(model, [[3, 4, 5]], room=4)
    with decoder.bound():
        decoder.prefill()
        with Calls() as step:
            decoder.step([6])
    with torch.no_grad(), Calls() as whole:
        model(torch.tensor([[3, 4, 5]]))
    # Around the model a step makes and moves a few tensors of its own.
    assert step.count < whole.count / 4
