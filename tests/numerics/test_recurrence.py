"""Recurrences as they are written, in float64, at every length and gate: with the gated delta rule and without."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oracles.oracle import relative_error
from oracles.recurrent import inputs, results
from oracles.recurrent import recurrence as as_written
from support.releases import FLA_ON_CPU
from support.repository import ROOT

from efficientbench.architecture.recurrent import CHUNK

FORWARD, BACKWARD = 1e-5, 3e-5
ROUNDED = 3e-2
"""By bf16, a few times."""
OF_DIFFERENCES = 3e-4
"""Between sums of decays, which fla-core takes, large ones among them."""
LENGTHS = (1, 2, 7, 63, 64, 65, 128, 200, 301)
RULES = ("delta rule", "by channel", "values")
"""What tokens learn: by the gated delta rule, with a decay for each head or for each channel of its key, or their
values, as in Mamba-2."""
QUICK = {
    *(("delta rule", *case) for case in ((1, "usual"), (65, "usual"), (65, "extreme"), (200, "fast"))),
    *((rule, *case) for rule in RULES[1:] for case in ((1, "usual"), (65, "extreme"), (200, "fast"))),
}


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], forward: float, back: float) -> None:
    for name, expected in wanted.items():
        # The gradient of a gate may be 0.
        scale = max(expected.abs().max().item(), 1e-2)
        assert (found[name] - expected).abs().max() < (forward if name in ("out", "state") else back) * scale, name


@pytest.mark.parametrize(
    ("rule", "length", "gates"),
    [
        case if case in QUICK else pytest.param(*case, marks=pytest.mark.proof)
        for case in itertools.product(RULES, LENGTHS, ("usual", "fast", "extreme"))
    ],
)
def test_a_recurrence_is_computed_as_it_is_written(rule: str, length: int, gates: str) -> None:
    from efficientbench.model.kernels.recurrence import recurrence

    given = inputs(rule, length, gates)
    wanted = results(as_written, given, torch.float64)
    assert_close(results(recurrence, given, torch.float64), wanted, 1e-9, 1e-9)
    assert_close(results(recurrence, given, torch.float32), wanted, FORWARD, BACKWARD)


@pytest.mark.parametrize("gates", ["usual", "extreme"])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_and_a_chunk_from_a_state_continue_the_sequence(rule: str, gates: str) -> None:
    from efficientbench.model.kernels.recurrence import recurrence, recurrence_step

    *given, state = (None if each is None else each.float() for each in inputs(rule, CHUNK + 9, gates))
    assert state is not None

    def cut(start: int, end: int) -> list[torch.Tensor | None]:
        return [None if each is None else each[start:end] for each in given]

    whole, last = recurrence(*given, state)
    outputs, carried = [], state
    for part in (cut(0, 5), cut(5, len(whole))):
        out, carried = recurrence(*part, carried)
        outputs.append(out)
    assert relative_error(torch.cat(outputs), whole) < FORWARD
    assert relative_error(carried, last) < FORWARD
    stepped = state.clone()
    steps = [recurrence_step(*cut(token, token + 1), stepped) for token in range(len(whole))]
    assert relative_error(torch.cat(steps), whole) < FORWARD
    assert relative_error(stepped, last) < FORWARD


@pytest.mark.parametrize(("rule", "name"), [("delta rule", "gated_delta_rule"), ("by channel", "kda")])
def test_flash_linear_attentions_reference_computes_the_same(rule: str, name: str) -> None:
    """Its file alone: the package's import asks for a GPU's driver."""
    from efficientbench.model.kernels.recurrence import recurrence

    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        pytest.skip("fla-core is not installed")
    path = Path(package.origin).parent / "ops" / name / "naive.py"
    if not path.exists():
        pytest.skip("this fla-core has no such operator")
    spec = importlib.util.spec_from_file_location(f"naive_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    query, key, value, decay, beta, state = (
        each.float() for each in inputs(rule, CHUNK + 9, "usual") if each is not None
    )
    by_row = [each.repeat_interleave(2, dim=2).transpose(0, 1) for each in (query, key)]
    by_row += [each.transpose(0, 1) for each in (value, *((decay, beta) if rule == "by channel" else (beta, decay)))]
    naive_rule = getattr(naive, f"naive_recurrent_{name}")
    wanted, last = naive_rule(*by_row, initial_state=state, output_final_state=True)
    out, carried = recurrence(query / math.sqrt(16), key, value, decay, beta, state)
    assert relative_error(out, wanted.transpose(0, 1)) < FORWARD
    assert relative_error(carried, last) < FORWARD


@FLA_ON_CPU
@pytest.mark.proof
@pytest.mark.parametrize("gates", ["extreme", "usual"])
@pytest.mark.parametrize("rule", RULES)
def test_flas_kernel_computes_the_same_in_tritons_interpreter(rule: str, gates: str) -> None:
    pytest.importorskip("fla.ops.kda", reason="fla-core is not installed")
    script = ROOT / "tests" / "oracles" / "fla_in_interpreter.py"
    command = [sys.executable, script, rule, gates]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # Output, state, and the gradients of all arguments.
    assert len(found) == (7 if rule == "values" else 8)
    for name, error in found.items():
        usual = FORWARD if name in ("out", "state") else BACKWARD
        assert error < (usual if gates == "usual" else OF_DIFFERENCES), name


@pytest.mark.gpu
@pytest.mark.parametrize("gates", ["usual", "extreme"])
@pytest.mark.parametrize("rule", RULES)
def test_flas_kernel_on_a_gpu_rounds_a_few_times(rule: str, gates: str) -> None:
    from efficientbench.model.kernels import recurrence_fla
    from efficientbench.model.kernels.recurrence import recurrence

    given = [None if each is None else each.bfloat16() for each in inputs(rule, CHUNK + 9, gates)]
    on_gpu = [None if each is None else each.cuda() for each in given]
    query, _, value, decay, beta, _ = on_gpu
    assert query is not None
    assert value is not None
    assert decay is not None
    if recurrence_fla.rule_for(query, value, decay, beta) is None:
        pytest.skip("fla-core does not serve this GPU")
    found = results(recurrence, on_gpu, torch.bfloat16)
    assert_close(found, results(as_written, given, torch.float64), ROUNDED, ROUNDED)
