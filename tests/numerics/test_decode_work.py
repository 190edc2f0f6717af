"""FLOPs and bytes of a decoding step by the formulas, and as counted where torch dispatches the CPU's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.configs import tiny
from support.oracle import build, text
from torch.utils._python_dispatch import TorchDispatchMode

from efficientbench.checking.flop_counting import FlopCounter
from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import cache_bytes_read, weight_bytes_read
from efficientbench.costs.generation_work import decode_work

pytestmark = pytest.mark.usefixtures("single_rank")

LENGTH = 48
"""Tokens of a row with the decoded one: as many as there is room for, so that no place behind them is read."""
ROWS = 2
CASES = ("gqa_1.5B", "mqa_1.5B", "mla_1.5B", "nsa_1.5B", "none_1.5B", "moe_1.5Bx8")
aten = torch.ops.aten
READING = (aten.mm, aten.bmm, aten.addmm, aten.cat, aten.add)
"""Operations that read all of an operand; `index` reads as much as it returns."""


class Reads(TorchDispatchMode):
    """The most bytes that one operation reads of each tensor among some, or of a part that begins elsewhere in it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.places = {each.untyped_storage().data_ptr() for each in tensors}
        self.most: dict[tuple[int, int], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flat = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else [arg])]
        for operand in (each for each in flat if isinstance(each, torch.Tensor)):
            part = operand.untyped_storage().data_ptr(), operand.storage_offset()
            if part[0] in self.places and func.overloadpacket in (*READING, aten.index):
                read = out if func.overloadpacket is aten.index else operand
                self.most[part] = max(self.most.get(part, 0), read.numel() * read.element_size())
        return out

    @property
    def bytes(self) -> int:
        return sum(self.most.values())


def configuration(name: str) -> RunConfig:
    return tiny(name, f"training.seq_len={LENGTH}")


def step_counted(config: RunConfig, length: int = LENGTH) -> tuple[int, int, int]:
    """FLOPs of a decoding step, and the bytes that it reads of the cache and of the weights."""
    from efficientbench.generation.decoder import Decoder

    model = build(config).eval()
    decoder = Decoder(model, text(config, length - 1).tolist(), room=1)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    # Norms and biases are read by operations of many kinds, but surely.
    vectors = sum(parameter.nbytes for parameter in model.parameters() if parameter.dim() == 1)
    with decoder.bound():
        decoder.prefill()
        kept = [each for state in decoder.cache.states for each in vars(state).values()]
        with FlopCounter() as counter, Reads(kept) as cache, Reads(matrices) as weights:
            decoder.step([1] * ROWS)
    return counter.total, cache.bytes, weights.bytes + vectors


@pytest.mark.parametrize("name", CASES)
def test_a_step_takes_what_the_formulas_say(name: str) -> None:
    config = configuration(name)
    flops, cache_bytes, weight_bytes = step_counted(config)
    work = decode_work(config.model, LENGTH, ROWS, "fp32")
    assert flops == sum(each.flops for works in work.values() for each in works)
    assert cache_bytes == ROWS * cache_bytes_read(config.model, LENGTH, "fp32")
    if config.model.moe is None:
        assert weight_bytes == weight_bytes_read(config.model, ROWS, "fp32")


def test_nsa_reads_no_more_of_a_long_sequence_than_its_compressed_keys_grow_by() -> None:
    config = tiny("nsa_1.5B", "training.seq_len=512")
    nsa, model = config.model.attention, config.model
    found = [step_counted(config, length)[1] for length in (256, 512)]
    groups, stride = nsa.query_groups, nsa.compress_stride
    assert found[1] - found[0] == ROWS * model.layers * 2 * groups * model.head_dim * 4 * (256 // stride)
    assert found == [ROWS * cache_bytes_read(model, length, "fp32") for length in (256, 512)]
