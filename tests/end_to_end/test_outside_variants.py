"""Variants from outside this project, as a user has them: runs, sweeps, reports, refusals, and their check."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import outside
from support.command_line import ROOT, TINY, efficientbench, environment, record
from support.proofs import proofs_but

from efficientbench.costs.generation import decode_work
from efficientbench.costs.model import cache_bytes, count_parameters, flops_per_token, keys_read_per_query
from efficientbench.doctor.variant.check import EXAMPLES, write_variant
from efficientbench.planning.plan import hidden

KIND = f"model.attention.kind={outside.PACKAGE}.window:VARIANT"


@pytest.mark.proof
def test_a_sweep_trains_and_reports_an_external_variant_and_export_refuses_it(
    path: str, tmp_path: Path, cache: str
) -> None:
    output = tmp_path / "runs"
    words = ("--smoke", f"output={output}", f"data.cache={cache}", *TINY, KIND)
    efficientbench(
        "sweep", "--only", "gqa_1.5B", *words, "--set", "model.attention.window=8,32", PYTHONPATH=path, expect=0
    )
    assert {folder.name for folder in output.glob("gqa*")} == {f"gqa_1.5B_smoke__window={size}" for size in (8, 32)}
    run = output / "gqa_1.5B_smoke__window=8"
    content = record(run)
    assert content["kernels"]["attention"] == "n/a: the attention's declaration names no kernels"
    assert content["hfu"] is None
    assert content["parameters"] > 0
    # Without the package on the path: nothing of these needs its code.
    assert "window=8" in efficientbench("report", str(output), expect=0).stdout
    done = efficientbench("export", str(run), str(tmp_path / "exported"), expect=2)
    assert f"is code from outside this project, which only a command that names it runs: add {KIND}" in done.stderr
    assert "Traceback" not in done.stderr
    done = efficientbench("export", str(run), str(tmp_path / "exported"), KIND, PYTHONPATH=path, expect=2)
    assert "its declaration names no class of transformers" in done.stderr
    done = efficientbench("evaluate", str(run), KIND, "--limit", "2", PYTHONPATH=path, expect=2)
    assert "my_package.window:VARIANT declares no formula for the state that decoding keeps" in done.stderr


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "words", "code", "found"),
    [
        ("future", (), 1, r"token 1 changes logits before it"),
        # Two layers are too few to interleave, so that each pipeline is tried by itself.
        ("delta", ("model.layers=2",), 0, r"✓  pipeline +losses of one .*\n.*✓  interleaved pipeline +refused"),
    ],
)
def test_an_external_variant_is_checked(name: str, words: tuple[str, ...], code: int, found: str, path: str) -> None:
    kind = f"{outside.PACKAGE}.{name}:VARIANT"
    done = efficientbench("check-variant", kind, *words, PYTHONPATH=path, expect=code, COLUMNS="160")
    assert re.search(found, done.stdout), done.stdout
    assert ("✓  checkpoint" in done.stdout) == (code == 0)
    assert "undeclared: tensor parallelism (parallel.tp)" in done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with two installed variants in a file each: `trial_window`, and `trial_trap`, which notes its import."""
    folder = tmp_path / "installed"
    folder.mkdir()
    shutil.copy(outside.FILES / "window.py", folder / "my_window.py")
    (folder / "my_trap.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
    for name in ("window", "trap"):
        outside.install(folder, "efficientbench.variants", f"trial_{name}", f"my_{name}:VARIANT")
    return folder


def test_an_installed_variant_is_named_without_its_code(installed: Path) -> None:
    for words in (("list", "trial"), ("check-variant", "--help")):
        printed = efficientbench(*words, PYTHONPATH=f"{ROOT}:{installed}", expect=0).stdout
        assert "trial_window" in printed
        assert "trial_trap" in printed
    assert not (installed / "ran").exists()
    # The trap works.
    runpy.run_path(str(installed / "my_trap.py"))
    assert (installed / "ran").exists()


def test_a_variant_in_the_current_folder_is_not_found(installed: Path) -> None:
    # As users call it: started with -m, a Python before 3.11 looks into the current folder.
    tool = Path(sys.executable).with_name("efficientbench")
    words = [tool, "plan", "gqa_1.5B", "model.attention.kind=my_trap:VARIANT"]
    done = subprocess.run(words, cwd=installed, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no module my_trap" in done.stderr
    assert not (installed / "ran").exists()


@pytest.mark.proof
def test_a_variant_of_one_file_works_in_runs_reports_and_checks(installed: Path, tmp_path: Path, cache: str) -> None:
    path, output = f"{ROOT}:{installed}", tmp_path / "runs"
    kind = ("model.attention.kind=trial_window", "model.attention.window=8", "label=window8")
    words = ("--smoke", f"output={output}", f"data.cache={cache}", *TINY, *kind)
    efficientbench("run", "gqa_1.5B", *words, PYTHONPATH=path, expect=0)
    assert record(output / "gqa_1.5B_smoke__window8")["config"]["model"]["attention"]["kind"] == "trial_window"
    assert "window8" in efficientbench("report", str(output), expect=0).stdout
    checked = efficientbench("check-variant", "trial_window", PYTHONPATH=path, expect=0, COLUMNS="160").stdout
    for title in ("trial_window, computed here", "trial_window, two tokens, computed here", "trial_window, in runs"):
        assert title in checked
    assert re.search(r"✓  pipeline, interleaved pipeline +losses of one rank in all 6 steps", checked), checked
    assert "✓  checkpoint" in checked
    assert "undeclared: tensor parallelism (parallel.tp)" in checked


@pytest.mark.usefixtures("single_rank")
def test_the_recurrent_layer_matches_its_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oracles.oracle import build
    from support.configs import tiny

    outside.lay_out(tmp_path, monkeypatch)
    config = tiny("dense_1.5B", f"model.attention.kind={outside.PACKAGE}.delta:VARIANT", "model.position.kind=none")
    layer = build(config).decoder.layers[0].self_attention
    hidden = torch.randn(9, 2, 48, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found, _ = layer(hidden)
        projected = (hidden.double() @ layer.linear_in.weight.double().t()).view(9, 2, 4, 38)
        outputs = torch.zeros(9, 2, 4, 12, dtype=torch.float64)
        for batch in range(2):
            for head in range(4):
                state = torch.zeros(12, 12, dtype=torch.float64)
                for token in range(9):
                    q, k, v, gates = projected[token, batch, head].split([12, 12, 12, 2])
                    q, k, (alpha, beta) = q / q.norm(), k / k.norm(), gates.sigmoid()
                    forget = torch.eye(12, dtype=torch.float64) - beta * torch.outer(k, k)
                    state = alpha * state @ forget + beta * torch.outer(v, k)
                    outputs[token, batch, head] = state @ q
        wanted = outputs.flatten(2) @ layer.linear_proj.weight.double().t()
    assert (found.double() - wanted).abs().max() < 1e-5 * wanted.abs().max()


@pytest.mark.usefixtures("single_rank")
def test_an_external_encoding_changes_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oracles.oracle import build, text
    from support.configs import tiny

    outside.lay_out(tmp_path, monkeypatch)
    kind = f"model.position.kind={outside.PACKAGE}.ramp:VARIANT"
    flat, steep = (tiny("dense_1.5B", kind, f"model.position.slope={slope}") for slope in (0, 0.5))
    tokens = text(flat, 16)
    with torch.no_grad():
        none, without = build(tiny("dense_1.5B", "model.position.kind=none"))(tokens), build(flat)(tokens)
        added = build(steep)(tokens)
    assert torch.equal(without, none)
    assert torch.equal(added[:, 0], none[:, 0])
    assert not torch.equal(added, none)


@pytest.mark.proof
def test_the_template_of_a_new_variant_works(tmp_path: Path) -> None:
    efficientbench("new-variant", "my_own", "--like", "gqa", cwd=tmp_path, expect=0)
    words = ("--smoke", "model.attention.kind=my_own:VARIANT")
    done = efficientbench("plan", "gqa_1.5B", *words, PYTHONPATH=f"{ROOT}:{tmp_path}", expect=0, COLUMNS="160")
    assert "keys read per query" in done.stdout
    assert "File exists" in efficientbench("new-variant", "my_own", "--like", "gqa", cwd=tmp_path, expect=2).stderr
    assert (
        "is no name of a Python module"
        in efficientbench("new-variant", "my-own", "--like", "gqa", cwd=tmp_path, expect=2).stderr
    )
    # A file of such a name would be imported in the place of torch, or of a part of Python.
    for name in ("torch", "json"):
        done = efficientbench("new-variant", name, "--like", "gqa", cwd=tmp_path, expect=2)
        assert f"{name}: Python has a module of this name, which {name}.py would hide" in done.stderr
        assert not (tmp_path / f"{name}.py").exists()


@pytest.mark.parametrize("like", proofs_but(["gqa"], sorted(EXAMPLES)))
def test_the_line_that_a_new_variant_prints_is_a_run(like: str, tmp_path: Path) -> None:
    printed = efficientbench("new-variant", "my_own", "--like", like, cwd=tmp_path, expect=0).stdout
    words = next(line for line in printed.splitlines() if line.startswith("  efficientbench run ")).split()[2:]
    efficientbench("plan", *words, PYTHONPATH=f"{ROOT}:{tmp_path}", expect=0)


@pytest.mark.proof
@pytest.mark.parametrize("like", sorted(EXAMPLES))
def test_a_new_variant_passes_the_check(like: str, tmp_path: Path) -> None:
    efficientbench("new-variant", "my_own", "--like", like, cwd=tmp_path, expect=0)
    path = f"{ROOT}:{tmp_path}"
    done = efficientbench("check-variant", "my_own:VARIANT", PYTHONPATH=path, limit_s=600, expect=0, COLUMNS="160")
    for passed in ("decoding", "tensor parallel", "sequence parallel", "selective recomputation", "checkpoint"):
        assert re.search(rf"✓  {passed} ", done.stdout), done.stdout


@pytest.mark.proof
def test_a_new_window_passes_the_check_in_a_pattern(tmp_path: Path) -> None:
    efficientbench("new-variant", "my_window", "--like", "window", cwd=tmp_path, expect=0)
    path = f"{ROOT}:{tmp_path}"
    mixed = ("model.pattern=[my_window:VARIANT,own]", "model.attention.kind=gqa")
    efficientbench("check-variant", "gqa", *mixed, PYTHONPATH=path, limit_s=600, expect=0, COLUMNS="160")


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("like", ["gqa", "mla"])
def test_a_new_variant_computes_and_decodes_what_its_base_does(
    like: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oracles.oracle import build, text
    from support.configs import tiny

    from efficientbench.model.cache import Cache

    write_variant(f"my_new_{like}", like, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ours, own = (tiny("dense_1.5B", f"model.attention.kind={kind}") for kind in (like, f"my_new_{like}:VARIANT"))
    tokens, found = text(ours, 24), build(own).eval()
    cache, parts = Cache(found, rows=2, tokens=24), []
    with torch.no_grad():
        whole, wanted = found(tokens), build(ours).eval()(tokens)
        with cache.bound():
            for part in tokens.split([16, 1, 7], dim=1):
                cache.counts.fill_(part.shape[1])
                parts.append(found(part))
                cache.advance()
    torch.testing.assert_close(whole, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, rtol=1e-4, atol=1e-4)
    assert cache_bytes(own.model, 24, "fp32") == cache_bytes(ours.model, 24, "fp32")
    assert count_parameters(own.model) == count_parameters(ours.model)


@pytest.mark.usefixtures("single_rank")
def test_a_new_recurrent_layer_is_its_recurrence_token_by_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oracles.oracle import build
    from support.configs import tiny

    write_variant("my_new_recurrent", "recurrent", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = ("model.attention.kind=my_new_recurrent:VARIANT", "model.position.kind=none", "model.init_std=0.2")
    config = tiny("dense_1.5B", *kind, "training.seq_len=72")
    layer = build(config).decoder.layers[0].self_attention
    hidden = torch.randn(72, 2, config.model.hidden_size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found = layer(hidden)[0]
    heads, width = config.model.heads, config.model.head_dim
    into, out = (each.weight.detach().double().numpy() for each in (layer.linear_in, layer.linear_proj))
    for row in range(2):
        state, wanted = np.zeros((heads, width, width)), []
        for token in hidden[:, row].double().numpy():
            by_head = (into @ token).reshape(heads, 3 * width + 1)
            query, key, value, gate = np.split(by_head, [width, 2 * width, 3 * width], axis=1)
            state = state / (1 + np.exp(-gate))[:, :, None] + key[:, :, None] * value[:, None, :]
            wanted.append(out @ np.einsum("hk,hkv->hv", query / width**0.5, state).ravel())
        np.testing.assert_allclose(found[:, row].numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("single_rank")
def test_a_new_window_costs_and_computes_what_that_of_gqa_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oracles.oracle import build, text
    from support.configs import tiny

    write_variant("my_new_window", "window", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ours, own = (
        tiny("dense_1.5B", f"model.attention.kind={kind}", "model.attention.window=9", "training.seq_len=32")
        for kind in ("gqa", "my_new_window:VARIANT")
    )
    tokens = text(ours, 32)
    with torch.no_grad():
        assert torch.equal(build(own)(tokens), build(ours)(tokens))
    assert hidden(own) is None
    assert count_parameters(own.model) == count_parameters(ours.model)
    for length in (5, 9, 32):
        assert flops_per_token(own.model, length) == flops_per_token(ours.model, length)
        assert keys_read_per_query(own.model, length) == keys_read_per_query(ours.model, length)
        assert cache_bytes(own.model, length, "bf16") == cache_bytes(ours.model, length, "bf16")
        assert decode_work(own.model, length, 2, "bf16") == decode_work(ours.model, length, 2, "bf16")
