"""The examples: a plain PyTorch loop in six lines, a Trainer by a callback, with nothing of the harness loaded."""

from __future__ import annotations

import math
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.repository import ROOT

from efficientbench.metrics import EfficiencyCallback, HostSensor, MetricsError, merge
from efficientbench.metrics.records.record import read_record

EXAMPLES = ROOT / "examples"


def test_a_plain_loop_is_measured_in_six_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES / "plain_pytorch.py"
    marked = re.findall(r"  # (\d)$", example.read_text(), flags=re.MULTILINE)
    assert marked == ["1", "2", "3", "4", "5", "6"]  # all that the measurement adds
    monkeypatch.setattr(sys, "argv", ["plain_pytorch.py", str(tmp_path / "plain")])
    monitor = runpy.run_path(str(example))["monitor"]
    run = merge([monitor.finish()])
    assert (len(run.step_times_s), run.tokens) == (10, 10 * 8 * 64)
    assert math.fsum(run.step_times_s) <= run.window_s
    assert run.amu_gb > 0.05  # torch alone is larger
    shown = capsys.readouterr().out
    for title in ("devices", "steps", "throughput", "memory", "utilization", "energy"):
        assert f"\n{title} " in f"\n{shown}"
    assert "10 measured" in shown
    record = read_record(tmp_path / "plain" / "record.json")
    assert (record.run, record.tokens, record.steps_measured, record.seq_len) == ("plain", run.tokens, 10, 64)
    assert (record.global_batch_size, record.micro_batch_size, record.dtype) == (8, 8, "fp32")
    assert (record.parameters, record.flops_per_token) == (2 * 128 * 256 + 256, 6 * 128 * 256)


def test_a_trainer_is_measured_by_a_callback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    monkeypatch.setattr(sys, "argv", ["transformers_trainer.py", str(tmp_path / "trainer")])
    run = runpy.run_path(str(EXAMPLES / "transformers_trainer.py"))["measured"].run
    assert (len(run.step_times_s), run.tokens) == (10, 10 * 4 * 32)
    shown = capsys.readouterr().out
    assert "10 measured" in shown
    record = read_record(tmp_path / "trainer" / "record.json")
    assert (record.run, record.tokens, record.seq_len, record.global_batch_size) == ("trainer", run.tokens, 32, 4)
    assert (record.dtype, record.dp) == ("fp32", 1)
    # Six for each parameter outside the embedding: two layers of 64, and their norms.
    assert record.flops_per_token == 6 * (record.parameters - 256 * 64)
    evaluated = [float(loss) for loss in re.findall(r"'eval_loss': '?([0-9.e+]+)", shown)]
    assert [point.step for point in record.quality_curve] == [6, 12]
    assert [point.tokens for point in record.quality_curve] == [6 * 4 * 32, 12 * 4 * 32]
    assert [point.loss for point in record.quality_curve] == pytest.approx(evaluated, rel=1e-3)
    assert record.validation_loss == record.quality_curve[-1].loss
    logged = [float(rate) for rate in re.findall(r"efficiency/tokens_per_s': '?([0-9.e+]+)", shown)]
    assert len(logged) == 3
    assert min(logged) > 0
    # The evaluation after step 6 lies between two windows, and the checkpoint's writing after them.
    (_, end_s), (begin_s, _) = run.windows
    evaluation_s = re.search(r"'eval_runtime': '?([0-9.e-]+)", shown)
    assert begin_s - end_s >= float(evaluation_s[1]) > 0


TRAINER = (
    SimpleNamespace(include_num_input_tokens_seen="no", process_index=0),
    SimpleNamespace(num_input_tokens_seen=0, is_world_process_zero=True, global_step=0),
    SimpleNamespace(should_evaluate=False, should_save=False),
)
"""What a Trainer passes to its callbacks."""


def test_a_trainer_that_counts_no_tokens_is_refused() -> None:
    callback = EfficiencyCallback(sensors=[])
    with pytest.raises(MetricsError, match="include_num_input_tokens_seen='all'"):
        callback.on_train_begin(*TRAINER)
    with pytest.raises(MetricsError, match="before training has ended"):
        callback.summary()


def test_a_trainer_that_restarts_training_samples_once() -> None:
    """`auto_find_batch_size` aborts a training and starts another."""
    callback = EfficiencyCallback(tokens_per_step=7, warmup_steps=0, sensors=[HostSensor()])
    for steps in (1, 3):
        callback.on_train_begin(*TRAINER)
        for _ in range(steps):
            callback.on_step_begin(*TRAINER)
            callback.on_step_end(*TRAINER)
    begun = [thread for thread in threading.enumerate() if thread.name == "metrics-host"]
    callback.on_train_end(*TRAINER)
    assert (len(begun), callback.run.tokens) == (1, 21)
    assert callback.run.amu_gb > 0.01
    # The first reading has the model in it.
    assert callback.run.memory_idle_gb is None
    assert callback.run.unavailable["memory_idle_gb"] == "the monitor starts after the model was built"


def test_the_loss_of_an_evaluation_after_the_training_is_recorded(tmp_path: Path) -> None:
    arguments, state, control = TRAINER
    arguments = SimpleNamespace(
        **vars(arguments),
        **{"train_batch_size": 1, "world_size": 1, "gradient_accumulation_steps": 1, "seed": 1, "bf16": False},
        **{"fp16": False, "load_best_model_at_end": False},
    )
    callback = EfficiencyCallback(tokens_per_step=8, warmup_steps=0, sensors=[HostSensor()], output=tmp_path)
    callback.on_train_begin(arguments, state, control)
    callback.on_evaluate(arguments, state, control, {"eval_loss": 9.0})  # of the untrained model
    state = SimpleNamespace(**{**vars(state), "global_step": 2})
    for _ in range(2):
        callback.on_step_begin(arguments, state, control)
        callback.on_step_end(arguments, state, control)
    callback.on_train_end(arguments, state, control)
    assert read_record(tmp_path / "record.json").validation_loss is None
    callback.on_evaluate(arguments, state, control, {"eval_loss": 4.0})
    record = read_record(tmp_path / "record.json")
    assert (record.validation_loss, [(each.step, each.tokens) for each in record.quality_curve]) == (4.0, [(2, 16)])


def test_measuring_imports_neither_harness_nor_megatron_nor_torch() -> None:
    program = (
        "import sys\nfrom efficientbench.metrics import EfficiencyMonitor\n"
        "with EfficiencyMonitor() as monitor:\n"
        "    with monitor.step(tokens=1): pass\n"
        "assert '1 measured' in monitor.summary()\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'megatron', 'pydantic', 'numpy', 'transformers'}, loaded\n"
        "ours = {name for name in sys.modules if name.startswith('efficientbench.')}\n"
        "assert all(name.startswith(('efficientbench.metrics', 'efficientbench.basics')) for name in ours), ours\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
