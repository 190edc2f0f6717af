"""Runs that compute a micro-batch twice: a bit that one rank flips is told, recorded and reported."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support import outside
from support.command_line import TINY, efficientbench, failure, record, steps

KIND = (f"model.attention.kind={outside.PACKAGE}.flipping:VARIANT", "model.attention.window=8")
DETERMINISTIC = "training.deterministic=true"
# Of the second layer's attention, when the micro-batch after the second step is computed again: 2 layers in each of
# 2 micro-batches of 2 steps, and in the first computation.
AGAIN = 2 * 2 * 2 + 2 + 2


@pytest.mark.proof
def test_a_flipped_bit_is_reported_with_rank_and_device_and_recorded(path: str, tmp_path: Path, cache: str) -> None:
    words = ("run", "gqa_1.5B", "--smoke", f"output={tmp_path}", f"data.cache={cache}", *TINY, *KIND, "parallel.tp=2")
    fault = ("model.attention.rank=1", f"model.attention.call={AGAIN}")
    done = efficientbench(*words, *fault, DETERMINISTIC, "training.recheck_every=2", PYTHONPATH=path, expect=0)
    place = "decoder.layers.1.self_attention"
    told = f"rank 1 ({socket.gethostname()}, cpu 0 ("
    assert f"warning: {told}" in done.stdout
    assert "deterministic: the same bits in every run" in done.stdout
    content = record(tmp_path / "gqa_1.5B_smoke")
    found = content["rechecks"]
    assert (found["count"], found["mismatched"], len(found["mismatches"])) == (3, 1, 1)
    [mismatch] = found["mismatches"]
    assert (mismatch["step"], mismatch["rank"]) == (2, 1)
    assert mismatch["where"].endswith((f"of {place}.core_attention", f"of {place}.linear_proj")), mismatch["where"]
    assert content["nondeterministic"].keys() == {"attention"}
    # The measured time is that of steps alone: step 2, steps 3 and 4, steps 5 and 6.
    assert len(content["windows"]) == 3
    assert content["steps_measured"] == 5
    assert len([line for line in steps(tmp_path / "gqa_1.5B_smoke") if line["kind"] == "step"]) == 6
    report = " ".join(efficientbench("report", str(tmp_path), expect=0).stdout.split())
    assert f"bits differed in 1 of 3 rechecks: {told}" in report


@pytest.mark.proof
def test_an_operator_without_a_deterministic_kernel_is_named(path: str, tmp_path: Path, cache: str) -> None:
    words = ("run", "gqa_1.5B", "--smoke", f"output={tmp_path}", f"data.cache={cache}", *TINY, *KIND)
    done = efficientbench(*words, "model.attention.also=unpooling", DETERMINISTIC, PYTHONPATH=path, expect=2)
    assert "training.deterministic=true: this device has no deterministic max_unpooling2d_forward_out" in done.stderr
    assert "Traceback" not in done.stderr
    assert failure(tmp_path / "gqa_1.5B_smoke")["kind"] == "mistake"
