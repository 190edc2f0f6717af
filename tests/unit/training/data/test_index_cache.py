"""The cache of sample indices: hostile and damaged files in it are neither run nor used, and are written anew."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from support.cells import write_corpus
from support.configs import tiny

from efficientbench.data_tools.tokens.splitting import split_documents

pytestmark = pytest.mark.usefixtures("single_rank")

FILES = 8
"""Three indices of each source, and two of their blend."""


class Opens:
    """A pickle that makes a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("blend")
    write_corpus(folder / "a", vocab_size=131)
    write_corpus(folder / "b", vocab_size=60, documents=90, length=70)
    return [folder / "a", folder / "b"]


def opened(prefixes: list[Path], cache: Path, *seeds: str) -> np.ndarray:
    """Open a blend as a run does; the tokens of its samples."""
    from efficientbench.training.data.sample_index import Vocabulary, open_training

    path = f"data.path=[0.7,{prefixes[0]},0.3,{prefixes[1]}]"
    config = tiny("gqa_1.5B", path, f"data.cache={cache}", *seeds)
    splits = split_documents(prefixes, config.data.split, 131, cache / "split")
    samples = open_training(config, 16, prefixes, splits, Vocabulary(131, 0, {"name": "tiny"}))
    return np.stack([samples[number]["tokens"].numpy() for number in range(16)])


def test_the_order_has_a_seed_of_its_own(prefixes: list[Path], tmp_path: Path) -> None:
    first, second = (opened(prefixes, tmp_path, f"training.seed={seed}") for seed in (1, 2))
    assert not np.array_equal(first, second)
    files = indices(tmp_path)
    assert np.array_equal(opened(prefixes, tmp_path, "training.seed=2", "data.seed=1"), first)
    assert np.array_equal(opened(prefixes, tmp_path, "training.seed=1", "data.seed=2"), second)
    # Seeds of one order share its indices.
    assert indices(tmp_path) == files


def indices(cache: Path) -> list[Path]:
    return sorted((cache / "index").glob("*.npy"))


def signed(path: Path) -> None:
    """Whoever can write to the cache can write the checksum too."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name(f"{path.name}.sha256").write_text(f"{digest}  {path.name}\n")


@pytest.mark.parametrize("with_checksum", [False, True])
def test_no_pickle_in_the_cache_is_read(prefixes: list[Path], tmp_path: Path, with_checksum: bool) -> None:
    expected, executed = opened(prefixes, tmp_path), tmp_path / "executed"
    content = {path: path.read_bytes() for path in indices(tmp_path)}
    assert len(content) == FILES
    for path in content:
        path.write_bytes(pickle.dumps(Opens(executed)))
        if with_checksum:
            signed(path)
    assert np.array_equal(opened(prefixes, tmp_path), expected)
    assert not executed.exists()
    assert {path: path.read_bytes() for path in indices(tmp_path)} == content


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def save_objects(path: Path) -> None:
    np.save(path, np.array([{}, {}]), allow_pickle=True)


def save_zip(path: Path) -> None:
    with path.open("wb") as stream:
        np.savez(stream, np.arange(8))


def save_real_numbers(path: Path) -> None:
    np.save(path, np.load(path).astype(np.float32))


def nest(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY\x01\x00\x28\x23" + b"-" * 9000)


def link_to_endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = {
    "cut short": (lambda path: os.truncate(path, path.stat().st_size - 8), False),
    "one bit": (flip, False),
    "empty": (lambda path: path.write_bytes(b""), False),
    "gone": (lambda path: path.unlink(), False),
    "no checksum": (lambda path: path.with_name(f"{path.name}.sha256").unlink(), False),
    "endless": (link_to_endless, False),
    "objects": (save_objects, True),
    "a zip file": (save_zip, True),
    "real numbers": (save_real_numbers, True),
    "a nested header": (nest, True),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_indices_are_rebuilt(
    prefixes: list[Path], tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = opened(prefixes, tmp_path)
    content = {path: path.read_bytes() for path in indices(tmp_path)}
    spoil: Callable[[Path], object]
    spoil, sign = DAMAGES[damage]
    for path in content:
        spoil(path)
        if sign:
            signed(path)
    with caplog.at_level(logging.INFO):
        assert np.array_equal(opened(prefixes, tmp_path), expected)
    for path, whole in content.items():
        assert path.read_bytes() == whole
        assert f"writing {path}" in caplog.messages
        told = [message for message in caplog.messages if message.startswith(f"{path} ")]
        assert told or damage == "gone"


def test_the_target_of_a_link_is_not_overwritten(prefixes: list[Path], tmp_path: Path) -> None:
    expected, precious = opened(prefixes, tmp_path), tmp_path / "precious"
    precious.write_text("all of it")
    for path in indices(tmp_path):
        path.unlink()
        path.symlink_to(precious)
    assert np.array_equal(opened(prefixes, tmp_path), expected)
    assert precious.read_text() == "all of it"
    assert not any(path.is_symlink() for path in indices(tmp_path))


def test_only_the_first_rank_builds_indices(
    prefixes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientbench.basics.errors import TrainingError

    opened(prefixes, tmp_path)
    spoilt = indices(tmp_path)[0]
    flip(spoilt)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 1)
    with pytest.raises(TrainingError, match="rank 1 cannot use the index"):
        opened(prefixes, tmp_path)
    assert spoilt.exists()
