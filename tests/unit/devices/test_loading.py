"""A run loads no library without need: Megatron without W&B, Triton and the compiler, which the first call loads."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from support.command_line import environment

from efficientbench.devices.loading import frames_by_name

PROGRAM = """
import gc, sys
from efficientbench.devices.loading import absent, loading

with loading():
    import torch
    from efficientbench.devices.cpu import CPU
    CPU().prepare(0)
    with absent(*CPU.needless):
        import efficientbench.worker.session

    @torch.compile
    def double(number):
        "Twice as much."
        return 2 * number

    @torch.compile(dynamic=False)
    def triple(number):
        return 3 * number

print("triton" in sys.modules)
print(gc.isenabled(), gc.get_freeze_count() > 100_000, torch.compile.__module__)
print("torch._inductor.compile_fx" in sys.modules, double.__name__, double.__doc__)
print(double(4), triple(4), "torch._inductor.compile_fx" in sys.modules)
print("wandb" in sys.modules, sorted(sys.modules.keys() & {"huggingface_hub", "httpx", "pyarrow", "transformers"}))
from efficientbench.metrics.records.sinks.wandb_log import WandbLog
import wandb
print(wandb.__name__)
"""


@pytest.mark.proof
def test_the_compiler_is_loaded_at_the_first_compiled_call() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "False",
        "True True torch",
        "False double Twice as much.",
        "8 12 True",
        "False []",
        "wandb",
    ]


def test_a_frames_module_is_found_by_its_name_while_modules_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`inspect` would else resolve the files of all loaded modules for each operator that torch registers."""
    found = inspect.getmodule
    with frames_by_name():
        frame = inspect.currentframe()
        assert frame is not None
        assert inspect.getframeinfo(frame).filename == __file__
        assert inspect.getmodule(frames_by_name) is sys.modules[frames_by_name.__module__]
        monkeypatch.setattr(inspect, "getabsfile", None)
        assert inspect.getmodule(frame) is sys.modules[__name__]
    assert inspect.getmodule is found


def test_the_parent_of_a_run_reads_no_source_and_loads_neither_torch_nor_what_downloads() -> None:
    """Each start would pay for them: pydantic parses every record's source where it takes descriptions from there."""
    needless = "{'fsspec', 'httpx', 'huggingface_hub', 'megatron', 'pyarrow', 'torch', 'transformers'}"
    program = (
        "import inspect, sys; inspect.findsource = None; "
        "import efficientbench.cli.app, efficientbench.running.micro_batch; "
        f"print({needless} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_the_parent_of_a_run_collects_no_garbage_while_it_loads() -> None:
    program = """
import gc, sys
from types import SimpleNamespace
import efficientbench.cli.app as app

def note(name, *_):
    if name == "efficientbench.running.run":
        print(gc.isenabled())

app.resolve_arguments = lambda *_: (None, "")
sys.meta_path.insert(0, SimpleNamespace(find_spec=note))
try:
    app.run("gqa_0.5B")
except AttributeError:  # there is no configuration
    print(gc.isenabled())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
