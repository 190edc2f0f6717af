"""Memory that decoding keeps: by hand, and not known where a declaration says nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console
from support import outside

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.config.load import resolve
from efficientbench.costs.model import cache_bytes, kv_cache_bytes_per_token
from efficientbench.generation.open_run import with_random_weights
from efficientbench.planning.plan import plan_anywhere
from efficientbench.planning.plan_table import print_plan

COUNTERS = 16


def test_bytes_are_those_counted_by_hand() -> None:
    # 28 layers, 2 bytes an element, 2 groups with heads of 128.
    of_a_key_and_value = 28 * 2 * 2 * 2 * 128
    gqa, mqa, mla, nsa = (resolve(f"{name}_1.5B").model for name in ("gqa", "mqa", "mla", "nsa"))
    assert cache_bytes(gqa, 2048, "bf16") == of_a_key_and_value * 2048 + COUNTERS
    assert cache_bytes(mqa, 2048, "bf16") == of_a_key_and_value // 2 * 2048 + COUNTERS
    # The latent is 1536 / 4 wide, the shared key 128 / 2.
    assert cache_bytes(mla, 2048, "bf16") == 28 * 2 * (384 + 64) * 2048 + COUNTERS
    # Whole blocks, compressed keys, window, a slot of each that takes what is not kept, and the tokens of a block.
    assert cache_bytes(nsa, 2048, "bf16") == of_a_key_and_value * (2048 + 127 + 512 + 2 + 31) + COUNTERS
    assert cache_bytes(nsa, 1, "bf16") == of_a_key_and_value * (64 + 0 + 1 + 2 + 31) + COUNTERS
    # It grows as the bytes per token say.
    for model in (gqa, mqa, mla, nsa):
        grown = cache_bytes(model, 16384, "bf16") - cache_bytes(model, 8192, "bf16")
        assert grown == 8192 * kv_cache_bytes_per_token(model, "bf16")


def test_tensor_parallel_ranks_share_groups_and_not_latents() -> None:
    gqa, mqa, mla, nsa = (resolve(f"{name}_1.5B").model for name in ("gqa", "mqa", "mla", "nsa"))
    for model, share in ((gqa, 2), (nsa, 2), (mqa, 1), (mla, 1)):
        alone, shared = (cache_bytes(model, 512, "fp32", tp) - COUNTERS for tp in (1, 2))
        assert alone == share * shared


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            "model.attention.kind={}.window:VARIANT",
            "no formula for the state that decoding keeps (AttentionCosts.state_bytes), and so cannot generate",
        ),
        (
            "model.pattern=[own,{}.window:VARIANT]",
            "model.attention.kind=my_package.window:VARIANT declares no formula for the state that decoding keeps",
        ),
        (
            "model.position.kind={}.ramp:VARIANT",
            "does not declare that rows can have positions of their own, and so cannot generate",
        ),
    ],
)
def test_what_declares_no_state_has_no_cache_in_the_plan(
    kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.lay_out(tmp_path, monkeypatch)
    config = resolve("gqa_1.5B", smoke=True, overrides=[kind.format(outside.PACKAGE), "device=cpu"])
    with pytest.raises(UndeclaredError, match=re.escape(reason)):
        cache_bytes(config.model, 64, "fp32")
    # Before anything is built.
    with pytest.raises(UndeclaredError, match=re.escape(reason)), with_random_weights(config):
        pass
    with (tmp_path / "plan").open("w+") as file:
        print_plan(plan_anywhere(config), Console(file=file, width=300))
        file.seek(0)
        printed = file.read()
    [row] = [line for line in printed.splitlines() if "cache of a sequence" in line]
    assert "n/a: " in row
    assert reason in row
    assert "generate MB" not in printed
