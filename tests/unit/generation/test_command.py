"""Prompts from the command line, and text on the screen."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.configs import tiny

from efficientbench.architecture.registry import load_kinds
from efficientbench.basics.errors import ConfigError, LackOfMemoryError
from efficientbench.config.parallel import ParallelConfig
from efficientbench.costs.generation import generation_bytes
from efficientbench.generation import command, rank
from efficientbench.generation.command import Screen, read_prompts
from efficientbench.generation.generate import Emitted, Row
from efficientbench.generation.on_ranks import Generation, SharedModel
from efficientbench.generation.sampling import Sampling
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.rank_process import Rank


def letters(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def test_prompts_are_a_text_or_the_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n  two é\n", encoding="utf-8")
    assert read_prompts(None, path) == ["one", "  two é"]
    path.write_bytes("one\r\ntwo\u2028still two\x0cand more\n".encode())
    assert read_prompts(None, path) == ["one", "two\u2028still two\x0cand more"]
    assert read_prompts("a\nb", None) == ["a\nb"]
    assert read_prompts(None, None) == [""]
    with pytest.raises(ConfigError, match="^--prompt: it is no UTF-8 text$"):
        read_prompts("\udcff", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), (b"\n \n", "has no prompt"), (b"a\xff", "is no UTF-8 text.*at byte 1")],
)
def test_a_file_without_prompts_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"--file: .*prompts.txt {message}"):
        read_prompts(None, path)
    with pytest.raises(ConfigError, match="--prompt and --file: give one of them"):
        read_prompts("a", path)


def emitted(prompt: int, text: bytes) -> list[list[Emitted]]:
    last = len(text) - 1
    return [[Emitted(Row(prompt), step, token, step == last)] for step, token in enumerate(text)]


def test_a_single_continuation_is_streamed() -> None:
    out = io.StringIO()
    screen = Screen(letters, ["ab"], [list(b"ab")], out.write)
    assert out.getvalue() == "ab"
    for step, seen in zip(emitted(0, "cé".encode()), ["abc", "abc", "abcé\n"], strict=True):
        screen.show(step)
        assert out.getvalue() == seen


def test_several_continuations_are_printed_complete_and_in_order() -> None:
    out = io.StringIO()
    screen = Screen(letters, ["a", "b"], [list(b"a"), list(b"b")], out.write)
    for step in emitted(1, b"xy"):
        screen.show(step)
    assert out.getvalue() == ""
    for step in emitted(0, b"z"):
        screen.show(step)
    assert out.getvalue() == "--- 1 of 2\naz\n--- 2 of 2\nbxy\n"


def test_stopped_generation_prints_the_text_so_far() -> None:
    out = io.StringIO()
    screen = Screen(letters, ["a", "b"], [list(b"a"), list(b"b")], out.write)
    for step in emitted(0, b"z"):
        screen.show(step)
    screen.show([Emitted(Row(1), 0, ord("x"), False)])
    screen.close()
    assert out.getvalue() == "--- 1 of 2\naz\n--- 2 of 2\nbx\n"


@pytest.mark.parametrize("argument", ["training.seq_len=3", "model.attention.window=3", "word"])
def test_keys_other_than_kinds_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="only model.attention.kind and model.position.kind can be given here"):
        load_kinds([argument])
    load_kinds(["model.attention.kind=gqa"])


def test_an_out_of_memory_error_names_the_largest_batch_that_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **options: object) -> Iterator[list[Emitted]]:
        raise RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB")
        yield []

    tokenizer = SimpleNamespace(encode_batch=lambda texts: [[1, 2]] * len(texts), decode=letters, eod_id=0)
    config = tiny("gqa_1.5B", "device=cpu")
    run = SimpleNamespace(warnings=(), config=config, tokenizer=tokenizer, model=None, step=3, form=None)
    monkeypatch.setattr(command, "opened", lambda folder, step, quantization: contextlib.nullcontext(run))
    monkeypatch.setattr(command, "generate", full)
    monkeypatch.setattr(command, "usable_bytes", lambda device, ranks: 10**9)
    assert command.generate_text(Generation(SharedModel(), Path("run"), ("a",) * 8, Sampling(), 4, 4)) == 1
    assert "error: out of memory with 4 prompts at once: --batch 3 would fit" in capsys.readouterr().err


def test_warnings_are_told_in_the_users_language(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SimpleNamespace(warnings=("what follows is of step 3, the newest intact checkpoint",))
    monkeypatch.setattr(command, "opened", lambda folder, step, quantization: contextlib.nullcontext(run))
    monkeypatch.setattr(command, "print_texts", lambda run, request, write: False)
    told = []
    for locale in ("C.UTF-8", "zh_CN.UTF-8"):
        monkeypatch.setenv("LC_ALL", locale)
        command.generate_text(Generation(SharedModel(), Path("run"), ("a",), Sampling(), 4, 4))
        told.append(capsys.readouterr().err)
    assert told == [f"warning: {run.warnings[0]}\n", "警告：以下为第 3 步，即最新的完好检查点\n"]


@pytest.mark.usefixtures("single_rank")
def test_ranks_name_the_largest_batch_that_fits_each_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    def full(*arguments: object, **options: object) -> Iterator[list[Emitted]]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        yield []

    parallel = ParallelConfig(tp=2, dp=1)
    config = tiny("gqa_1.5B", "device=cpu").model_copy(update={"parallel": parallel})
    tokenizer = SimpleNamespace(encode_batch=lambda texts: [[1, 2]] * len(texts), decode=letters, eod_id=0)
    run = SimpleNamespace(config=config, tokenizer=tokenizer, model=torch.nn.Linear(1, 1), form=None)
    asked = Generation(SharedModel(tp=2), tmp_path, ("a",) * 8, Sampling(), 4, 4)
    monkeypatch.setattr(rank, "opened", lambda folder, step, share, quantization: contextlib.nullcontext(run))
    monkeypatch.setattr(command, "generate", full)
    fits = generation_bytes(config.model, 2, 4, 2, "fp32", tp=2)
    assert fits < generation_bytes(config.model, 2, 4, 1, "fp32")
    monkeypatch.setattr(command, "usable_bytes", lambda device, ranks: {2: fits}[ranks])
    with pytest.raises(LackOfMemoryError) as found:
        rank.generate_rank(asked, Rank(1, 1, HeartbeatWriter(), lambda: False))
    failure = asked.diagnose(found.value, tmp_path / "rank_1.log")
    assert (failure.kind, failure.reason) == (
        "out_of_memory",
        "out of memory with 4 prompts at once: --batch 2 would fit",
    )
    closed = asked.diagnose(BrokenPipeError(32, "Broken pipe"), tmp_path / "rank_0.log")
    assert (closed.kind, closed.reason) == ("mistake", "the output was closed before all texts were complete")
    full_disk = asked.diagnose(OSError(28, "No space left on device"), tmp_path / "rank_0.log")
    assert full_disk.kind == "full_disk"
    assert asked.diagnose(OSError(12, "Cannot allocate memory"), tmp_path / "rank_0.log").kind == "out_of_memory"
    for_weights = asked.diagnose(torch.OutOfMemoryError("CUDA out of memory."), tmp_path / "rank_1.log")
    assert for_weights.reason == "out of memory for the weights: a --tp above 2 may fit"
