"""Checkpoints of somebody who means harm: their checksums fit, and what they hold is refused."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import read_weights, resume
from support.hostile import Touch, rewrite_manifest
from support.ranks import Ranks
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from efficientbench.basics.errors import CheckpointError
from efficientbench.training.checkpoints.manifest import checkpoint_folder, read_manifest, verify


@contextlib.contextmanager
def tampered_metadata(folder: Path) -> Iterator[Any]:
    """`.metadata` to change, written back with checksums that fit."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    yield metadata
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    rewrite_manifest(folder)


def test_a_foreign_class_in_the_metadata_is_refused(
    run_folder: Path, corpus: Path, ranks: Callable[[int], Ranks]
) -> None:
    newest, trace = checkpoint_folder(run_folder, 4), run_folder / "was_here"
    with tampered_metadata(newest) as metadata:
        metadata.storage_meta = Touch(trace)
    # Checksums do not help against one who writes them too.
    verify(newest)
    with pytest.raises(CheckpointError, match=r"\.metadata: refused, it names posix.system, which is no part"):
        read_weights(newest)
    with pytest.raises(AssertionError, match=r"CheckpointError: .*\.metadata: refused, it names posix.system"):
        resume(ranks, corpus, newest)
    assert not trace.exists()
    # The test itself works: an unpickler that trusts the file does what it says.
    pickle.loads((newest / ".metadata").read_bytes())
    assert trace.exists()


def test_a_foreign_class_beside_the_tensors_is_refused(
    run_folder: Path, corpus: Path, ranks: Callable[[int], Ranks]
) -> None:
    newest, trace = checkpoint_folder(run_folder, 4), run_folder / "was_here"
    torch.save({"state": Touch(trace)}, newest / "common.pt")
    rewrite_manifest(newest)
    with pytest.raises(AssertionError, match=r"common.pt: refused, Weights only load failed"):
        resume(ranks, corpus, newest)
    assert not trace.exists()


NORM = "model.decoder.final_layernorm.weight"


def test_a_foreign_class_in_place_of_a_tensor_is_refused(run_folder: Path) -> None:
    newest, trace = checkpoint_folder(run_folder, 4), run_folder / "was_here"
    hostile = io.BytesIO()
    torch.save(Touch(trace), hostile)
    with tampered_metadata(newest) as metadata:
        stored = next(each for index, each in metadata.storage_data.items() if index.fqn == NORM)
        with (newest / stored.relative_path).open("ab") as file:
            stored.offset, stored.length = file.tell(), len(hostile.getvalue())
            file.write(hostile.getvalue())
    with pytest.raises(CheckpointError, match=r"distcp: refused at byte [\d,]+, Weights only load failed"):
        read_weights(newest)
    assert not trace.exists()


def _names_another_file(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).relative_path = "../../../etc/passwd"


def _names_bytes(metadata: Any) -> None:
    metadata.state_dict_metadata["model.bytes"] = BytesStorageMetadata()


def _describes_no_tensor(metadata: Any) -> None:
    del metadata.state_dict_metadata[NORM]


def _has_no_storage_data(metadata: Any) -> None:
    metadata.storage_data = None


def _places_no_part(metadata: Any) -> None:
    for index in [each for each in metadata.storage_data if each.fqn == NORM]:
        del metadata.storage_data[index]


def _changes_tensor(**fields: Any) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        for name, value in fields.items():
            setattr(metadata.state_dict_metadata[NORM], name, value)

    return change


def _changes_chunk(**fields: Any) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        for name, value in fields.items():
            setattr(metadata.state_dict_metadata[NORM].chunks[0], name, value)

    return change


def _reads_beyond(metadata: Any) -> None:
    next(each for index, each in metadata.storage_data.items() if index.fqn == NORM).length = 1 << 40


def _is_enormous(metadata: Any) -> None:
    stored = metadata.state_dict_metadata[NORM]
    stored.size = stored.chunks[0].sizes = torch.Size([1 << 50])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_is_enormous, "it describes 4,5.* bytes of tensors, and its files hold"),
        (_changes_tensor(size=torch.Size([1 << 50])), f"the parts of {NORM} are not the whole of it"),
        (_changes_tensor(size=torch.Size([-1])), f"{NORM} has no dtype or no shape"),
        (_changes_tensor(size="48"), f"{NORM} has no dtype or no shape"),
        (_changes_tensor(chunks=None), r"metadata: damaged \(TypeError"),
        (_changes_tensor(properties=None), r"metadata: damaged \(AttributeError"),
        (_changes_chunk(offsets=torch.Size([7])), f"a part of {NORM} lies outside its shape"),
        (_changes_chunk(offsets=torch.Size([0, 0])), f"a part of {NORM} lies outside its shape"),
        (_reads_beyond, f"a part of {NORM} lies outside __"),
        (_names_another_file, "refused, it reads ../../../etc/passwd, which the manifest lacks"),
        (_names_bytes, "BytesStorageMetadata"),
        (_describes_no_tensor, f"refused, it places {NORM}, which it does not describe"),
        (_has_no_storage_data, r"\.metadata: refused, it has no storage_data, which says where"),
        (_places_no_part, "the parts of decoder.final_layernorm.weight are not the whole of it"),
    ],
)
def test_metadata_that_does_not_match_the_files_is_refused(
    change: Callable[[Any], None], reason: str, run_folder: Path
) -> None:
    newest = checkpoint_folder(run_folder, 4)
    with tampered_metadata(newest) as metadata:
        change(metadata)
    with pytest.raises(CheckpointError, match=reason):
        read_weights(newest)


def test_invalid_metadata_is_refused(run_folder: Path) -> None:
    newest = checkpoint_folder(run_folder, 4)
    (newest / ".metadata").write_bytes(pickle.dumps({"no": "metadata"}))
    rewrite_manifest(newest)
    with pytest.raises(CheckpointError, match="it is no metadata"):
        read_weights(newest)


def test_another_shape_is_refused_before_the_engine_reads(
    run_folder: Path, corpus: Path, ranks: Callable[[int], Ranks]
) -> None:
    newest = checkpoint_folder(run_folder, 4)
    with tampered_metadata(newest) as metadata:
        stored = metadata.state_dict_metadata[NORM]
        stored.size = torch.Size([*stored.size, 1])
        for chunk in stored.chunks:
            chunk.offsets, chunk.sizes = torch.Size([*chunk.offsets, 0]), torch.Size([*chunk.sizes, 1])
    with pytest.raises(
        AssertionError, match=rf"CheckpointError: .*: refused, {NORM} has the shape \[48, 1\], and here \[48\]"
    ):
        resume(ranks, corpus, newest)
    with pytest.raises(CheckpointError, match="a part of decoder.final_layernorm.weight does not fit"):
        read_weights(newest)


@pytest.mark.parametrize(
    "fields", [{"layout": 5}, {"config": []}, {"step": "four"}, {"files": [1]}, {"data": {"a": 1}}]
)
def test_a_manifest_of_wrong_types_is_refused(fields: dict[str, object], run_folder: Path) -> None:
    newest = checkpoint_folder(run_folder, 4)
    rewrite_manifest(newest, **fields)
    with pytest.raises(CheckpointError, match=rf"manifest.json: damaged \({next(iter(fields))}"):
        read_manifest(newest)
