"""What a rank reports of an exception."""

from __future__ import annotations

from pathlib import Path

from efficientbench.basics.errors import NonFiniteError, TrainingError
from efficientbench.finetuning.rank import diagnose
from efficientbench.finetuning.saved import SavingError
from efficientbench.running.failures import NO_RECORD

LOG = Path("log/rank_0.log")


def test_files_that_failed_their_check_make_a_failed_run_and_no_users_mistake() -> None:
    failure = diagnose(SavingError("adapter: what was saved is not what was trained"), LOG)
    assert (failure.kind, failure.exit_code) == ("crash", 1)
    assert failure.kind not in NO_RECORD
    assert "what was saved is not what was trained" in failure.reason
    assert diagnose(TrainingError("rank 1 has other examples"), LOG).kind == "mistake"


def test_a_loss_that_is_not_finite_is_told_with_its_step() -> None:
    failure = diagnose(NonFiniteError("the loss of step 7 is nan", 7, 0), LOG)
    assert (failure.kind, failure.step, failure.rank) == ("non_finite", 7, 0)
