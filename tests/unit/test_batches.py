"""The cache of sample indices, which megatron writes without a thought of what may end it half-way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("single_rank")


def test_what_a_build_left_unfinished_is_built_again(tmp_path: Path) -> None:
    from efficientbench.training.batches import _locked

    whole, torn, building = tmp_path / "whole.npy", tmp_path / "torn.npy", tmp_path / "building"
    for path, time_s in ((whole, 100), (building, 200), (torn, 300)):
        path.touch()
        os.utime(path, (time_s, time_s))
    with _locked(tmp_path):
        assert whole.exists()
        assert not torn.exists()
        assert building.exists()
    assert not building.exists()


def test_a_build_that_fails_leaves_its_mark(tmp_path: Path) -> None:
    from efficientbench.training.batches import _locked

    with pytest.raises(OSError, match="full"), _locked(tmp_path):
        raise OSError("full")
    assert (tmp_path / "building").exists()
