"""What lies where a file is about to be written may be a link to somebody's file, which stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import disk_errors_explained, exclusive_lock, write_file
from efficientbench.data_tools.tokenizing.parallel import _call


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("all of it")
    return path


def test_a_link_in_place_of_a_partial_file_is_replaced(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "file.partial").symlink_to(precious)
    write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()
    assert precious.read_text() == "all of it"


def test_a_lock_is_not_created_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "made")
    refused = pytest.raises(DataError, match=r"lock: Too many levels of symbolic links")
    with refused, disk_errors_explained(tmp_path), exclusive_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "made").exists()


def test_a_worker_unpickles_only_what_its_parent_wrote(tmp_path: Path) -> None:
    file = tmp_path / "function.pickle"
    file.write_bytes(b"cos\nmkdir\n(S'%s'\ntR." % bytes(tmp_path / "executed"))
    with pytest.raises(DataError, match="changed since this run wrote it"):
        _call(file, b"digest of another content", None)
    assert not (tmp_path / "executed").exists()
