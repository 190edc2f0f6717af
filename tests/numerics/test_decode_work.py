"""FLOPs of a decoding step by the formulas, and as counted where torch dispatches the CPU's operations."""

from __future__ import annotations

import pytest
from oracles.oracle import build, text
from support.configs import ATTENTIONS, chosen, decodes, tiny_model

from efficientbench.costs.generation import decode_work
from efficientbench.doctor.variant.model import FlopCounter

pytestmark = pytest.mark.usefixtures("single_rank")

ROWS = 2


@pytest.mark.parametrize("length", [48, 200])
@pytest.mark.parametrize("name", [*chosen(ATTENTIONS, decodes), "none", "moe"])
def test_the_flops_of_a_decoding_step_match_the_formulas(name: str, length: int) -> None:
    from efficientbench.generation.decoder import Decoder

    config = tiny_model(name, f"training.seq_len={length}")
    # Room for no more: places behind the last token would be read too.
    decoder = Decoder(build(config).eval(), text(config, length - 1).tolist(), room=1)
    with decoder.bound():
        decoder.prefill()
        with FlopCounter() as counter:
            decoder.step([1] * ROWS)
    work = decode_work(config.model, length, ROWS, "fp32")
    assert counter.total == sum(each.flops for works in work.values() for each in works)
