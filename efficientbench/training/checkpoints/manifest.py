"""Find a run's checkpoints and verify them by `manifest.json`, which lists the folder's other files with checksums.

A checkpoint is complete when its folder has its final name: `checkpoint/step_00000100`, or `checkpoint/checkpoint-100`
for a fine-tuning. The folder gets that name only after the manifest, with size and SHA-256 of every file, is on the
disk. No torch here: the parent process imports this too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from efficientbench.basics.errors import CheckpointError, os_errors_as
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.config.init import InitConfig
from efficientbench.training.checkpoints.hashing import File, Report, fingerprint, flush, hashing_threads

MANIFEST = "manifest.json"
FORMAT = 1
PARTIAL = ".partial_"
DAMAGED = "damaged_"
_LEARNED = ("tokens", "losses", "auxiliary_losses", "validation", "validations")
"""Parts of the progress that a branch has from its trunk."""
COMPLETE = re.compile(r"(?:step_|checkpoint-)(\d+)")
"""The name of a complete checkpoint with its steps, in pretraining's and in transformers' form."""


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's plain data (its tensors: see `contents`), and the list of its files."""

    step: int
    """Completed steps; also the position in the data, since a step's samples follow from its number."""
    stopped: bool
    """Whether the run was asked to stop after that step: a validation due at that step follows when it resumes."""
    holds: str
    """'everything', or 'weights' for the last checkpoint of a complete run, from which no run resumes."""
    config: dict[str, Any]
    """The run's configuration."""
    data: list[str]
    """The fingerprint of each source's tokens."""
    layout: dict[str, Any]
    """The run's layout."""
    formula: str
    """The run's `efficientbench.metrics.formulas.definitions.FORMULAS`."""
    steps_left_out: int
    """Steps that were skipped because loss or gradients were not finite."""
    optimizer_step: float
    """Updates that the optimizer has made: fewer than steps if some were skipped."""
    loss_scale: dict[str, Any] | None
    """The state of fp16's loss scaler; None for other dtypes."""
    progress: dict[str, Any]
    """The listeners' state for the run's next attempt."""
    files: dict[str, File] = field(default_factory=dict)
    """Path below the checkpoint's folder → size and checksum of the file."""
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write the manifest into the checkpoint's folder, and force it onto the disk."""
        with (folder / MANIFEST).open("x", encoding="utf-8") as file:
            file.write(_text(asdict(self)))
            file.flush()
            os.fsync(file.fileno())


_MANIFEST = TypeAdapter(Manifest)


def _text(content: Mapping[str, Any]) -> str:
    body = json.dumps(content, indent=1, sort_keys=True)
    return json.dumps(
        {"sha256": hashlib.sha256(body.encode()).hexdigest(), "content": content}, indent=1, sort_keys=True
    )


def read_manifest(folder: Path) -> Manifest:
    """Return a checkpoint's manifest after a check of its own checksum.

    Raises:
        CheckpointError: the manifest is missing, damaged, or of another format; the message names the file.
    """
    path = folder / MANIFEST
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: {'is no regular file' if path.exists() else 'missing'}")
        text = read_whole(path).decode("utf-8")
        content = parse_json(text)["content"]
        # Compared byte for byte, so that even a changed space is found.
        if _text(content) != text:
            raise ValueError("its checksum does not fit its content")
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path}: written in format {content['format']}; this program reads {FORMAT}")
        # A right checksum does not prove right types: whoever wrote it may mean harm.
        return _MANIFEST.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: damaged ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from None


def identity(folder: Path) -> str:
    """Return the SHA-256 (hex) of a checkpoint's manifest, which lists the checksums of all other files.

    Raises:
        CheckpointError: the manifest cannot be read.
    """
    return _seen(folder / MANIFEST).sha256


def verify(
    folder: Path, part: int = 0, parts: int = 1, more_files: bool = False, report: Report | None = None
) -> Manifest:
    """Read the manifest, and compare size and SHA-256 of the files with it.

    Args:
        folder: of one checkpoint.
        part: number of this rank among `parts` ranks, each of which verifies some of the files.
        parts: how many ranks verify all files together.
        more_files: whether the folder may hold files that the manifest lacks.
        report: told what is hashed.

    Raises:
        CheckpointError: a file is missing, surplus or not as it was written; the message names it.
    """
    manifest = check_sizes(folder, more_files)
    mine = sorted(manifest.files.items())[part::parts]
    with hashing_threads() as threads:
        found = threads.map(lambda item: _seen(folder / item[0], report), mine)
        for (name, wanted), seen in zip(mine, found, strict=True):
            if seen != wanted:
                raise CheckpointError(f"{folder / name}: damaged, its SHA-256 is not that of the manifest")
    return manifest


def check_sizes(folder: Path, more_files: bool = False) -> Manifest:
    """Read the manifest, and check that its files exist with their sizes; their content is not read.

    Without `more_files`, check that the folder holds no others.

    Raises:
        CheckpointError: a file is missing, surplus or of another size; the message names it.
    """
    manifest = read_manifest(folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} - {MANIFEST}
    listed = manifest.files.keys()
    for name in sorted(listed - found if more_files else listed ^ found):
        raise CheckpointError(f"{folder / name}: {'not in the manifest' if name in found else 'missing'}")
    for name, wanted in sorted(manifest.files.items()):
        with os_errors_as(CheckpointError, f"{folder / name}: cannot be read"):
            found_there = (folder / name).stat()
        if not stat.S_ISREG(found_there.st_mode):
            raise CheckpointError(f"{folder / name}: is no regular file")
        size_bytes = found_there.st_size
        if size_bytes != wanted.bytes:
            raise CheckpointError(
                f"{folder / name}: damaged, it has {size_bytes:,} bytes where {wanted.bytes:,} were written"
            )
    return manifest


def seal(folder: Path, content: Manifest, report: Report | None = None) -> None:
    """Write the manifest of a folder whose files are all there; those that its list lacks are hashed here.

    `report` is told what is hashed.

    Raises OSError: the disk is full.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in content.files:
            flush(path)
            content.files[name] = fingerprint(path, report)
    content.write(folder)
    flush(folder)


def publish(
    folder: Path,
    final: Path,
    content: Manifest,
    keep: int,
    report: Report | None = None,
    spared: Collection[int] = (),
) -> None:
    """Make a folder the checkpoint `final`: seal it, rename it, and remove others, as `keep_last` does."""
    seal(folder, content, report)
    # In this order: a crash at any point leaves either no checkpoint or one whose every byte is on the disk.
    os.rename(folder, final)
    flush(final.parent)
    keep_last(final.parents[1], final, keep, spared)


def verify_where_listed(folder: Path) -> None:
    """Verify the files that a manifest of this program lists, as models have that it wrote; others may lie beside them.

    A `manifest.json` of another program is left alone.

    Raises CheckpointError: a listed file is missing or damaged, or the manifest itself; the message names it.
    """
    if not os.path.lexists(folder / MANIFEST) or _is_foreign(folder / MANIFEST):
        return
    try:
        verify(folder, more_files=True)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove {MANIFEST} if you changed the folder yourself") from None


def _is_foreign(path: Path) -> bool:
    """Return whether a manifest is JSON of another form than ours; one that cannot be read may be ours, damaged."""
    try:
        content = parse_json(read_whole(path))
    except (OSError, ValueError):
        return False
    return not isinstance(content, dict) or content.keys() != {"sha256", "content"}


def _seen(path: Path, report: Report | None = None) -> File:
    with os_errors_as(CheckpointError, f"{path}: cannot be read"):
        return fingerprint(path, report)


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step` steps."""
    return run_folder / "checkpoint" / f"step_{step:08d}"


def begun_with(init: InitConfig) -> Path | None:
    """Return the folder of the checkpoint of another run with which a run begins; None where it draws its weights."""
    return None if init.run is None or init.step is None else checkpoint_folder(Path(init.run), init.step)


def before_attempt(resume: Path | None, init: InitConfig) -> Manifest | None:
    """Return the manifest of the state with which an attempt begins; None where it begins at step 1.

    It is that of the checkpoint `resume`, or at a branch's beginning that of its trunk, without the trunk's times.

    Raises:
        CheckpointError: as `read_manifest`.
    """
    if resume is not None:
        return read_manifest(resume)
    folder = begun_with(init)
    if folder is None or not init.branches:
        return None
    trunk = read_manifest(folder)
    return replace(trunk, progress={key: trunk.progress[key] for key in _LEARNED} | {"elapsed_s": 0.0, "goodput": {}})


def complete(run_folder: Path) -> list[Path]:
    """Return the paths in the run's folder with the name of a complete checkpoint, oldest first, unverified.

    They include paths that are no folders, such as a broken link, which would block the run's next checkpoint.
    """
    return sorted((path for path in (run_folder / "checkpoint").glob("*") if COMPLETE.fullmatch(path.name)), key=_step)


def _step(folder: Path) -> int:
    named = COMPLETE.fullmatch(folder.name)
    assert named is not None
    return int(named[1])


def find_good(run_folder: Path, check: Callable[[Path], Manifest] | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint (None if there is none), and for each newer one what is wrong with it.

    `check`: `check_sizes`, which reads no content, since hashing terabytes takes minutes; None: `verify`.
    """
    problems = []
    for folder in reversed(complete(run_folder)):
        try:
            (check or verify)(folder)
        except CheckpointError as error:
            problems.append(str(error))
        else:
            return folder, problems
    return None, problems


def set_damaged_aside(run_folder: Path, good: Path) -> None:
    """Rename checkpoints newer than `good`, from which the run resumes: it will write the same steps again."""
    for folder in complete(run_folder):
        if _step(folder) > _step(good):
            aside = folder.with_name(f"{DAMAGED}{folder.name}")
            _remove(aside)
            folder.rename(aside)


def remove_partial(run_folder: Path) -> None:
    """Remove the folders of attempts that ended during a save."""
    for folder in (run_folder / "checkpoint").glob(f"{PARTIAL}*"):
        _remove(folder)


def keep_last(run_folder: Path, newest: Path, keep: int, spared: Collection[int] = ()) -> None:
    """Remove all but the `keep` last checkpoints up to `newest`, which is complete, and those of the steps `spared`."""
    steps = {each: _step(each) for each in complete(run_folder)}
    for folder in [each for each, step in steps.items() if step <= _step(newest) and step not in spared][:-keep]:
        # Renamed first: an interrupted removal must leave nothing that looks like a checkpoint.
        away = folder.with_name(f"{PARTIAL}{folder.name}")
        folder.rename(away)
        _remove(away)


def _remove(path: Path) -> None:
    """Remove a folder with its content; of a link, only the link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
