"""The wheel of torch-npu has every name and keyword that this project uses and that the simulated NPU has."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import pytest
from oracles.npu_kernels import NsaSelectAttention
from replicas import torch_npu_wheel
from replicas.torch_npu_wheel import NAMESPACE, PACKAGE, Use, assigned, uses
from support.repository import ROOT

from efficientbench.devices.npu import NPU
from efficientbench.metrics.sensors.allocator import DeviceMemory

SIMULATED = ROOT / "tests" / "replicas" / "simulated_npu" / "torch_npu"
FOLDERS = ("efficientbench", "metrics", "launchers", "data_tools")
PACKAGE_NAMES = {"npu", "contrib", "__version__"}
"""Names in the package that this project uses besides its operators."""


@pytest.fixture(autouse=True, scope="module")
def _wheel() -> None:
    try:
        torch_npu_wheel.wheel()
    except torch_npu_wheel.NoWheelError as reason:
        pytest.skip(f"torch-npu's wheel is neither cached nor to be downloaded here: {reason}")


def problems(use: Use) -> Iterator[str]:
    """Yield what is wrong with a use by the wheel."""
    if use.owner == NAMESPACE:
        if use.name not in torch_npu_wheel.namespace_names():
            yield f"torch_npu.npu has no {use.name}"
        return
    schemas = torch_npu_wheel.schemas().get(use.name)
    if schemas is None:
        if use.name not in PACKAGE_NAMES:
            yield f"torch_npu has no {use.name}"
    elif use.arguments is not None and not any(_fits(schema, use) for schema in schemas):
        yield f"no signature of {use.name} takes {use.arguments} arguments and {', '.join(use.keywords)}: {schemas}"


def _fits(schema: object, use: Use) -> bool:
    positional, named = _names(schema)
    given = set(positional[: use.arguments]) | set(use.keywords)
    needed = {each.name for each in schema.arguments if not each.has_default_value()}  # type: ignore[attr-defined]
    known = {*positional, *named}
    return (use.arguments or 0) <= len(positional) and set(use.keywords) <= known and needed <= given


def test_what_the_project_uses_exists() -> None:
    found = {
        f"{file.relative_to(ROOT)}:{use.line}": use
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for use in uses(file.read_text(encoding="utf-8"))
    }
    assert [f"{place}: {problem}" for place, use in found.items() for problem in problems(use)] == []
    # The search finds what is known to be there.
    names = {use.name for use in found.values()}
    assert {"npu_fusion_attention", "npu_nsa_select_attention_grad", "npu_grouped_matmul_add_", "set_device"} <= names
    assert {use.owner for use in found.values()} == {PACKAGE, NAMESPACE}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("torch_npu.npu_fusion_atention(q, k, v, 4, 'SBH')", "torch_npu has no npu_fusion_atention"),
        ("torch_npu.npu_fusion_attention(q, k, v, 4, 'SBH', attn_mask=m)", "no signature"),
        ("torch_npu.npu_rms_norm(x, w, eps=1e-6)", "no signature"),
        ("torch_npu.npu_rms_norm(x)", "no signature"),
        ("torch_npu.npu_swiglu(x, -1, 0)", "no signature"),
        ("torch_npu.npu.device_counts()", "torch_npu.npu has no device_counts"),
        ("torch.npu.memory_alocated()", "torch_npu.npu has no memory_alocated"),
        ("kernels = torch_npu\nkernels.npu_swigloo(x)", "torch_npu has no npu_swigloo"),
        ("hasattr(torch_npu, 'npu_swigloo')", "torch_npu has no npu_swigloo"),
    ],
)
def test_a_typo_is_found(line: str, problem: str) -> None:
    found = [text for use in uses(f"import torch\nimport torch_npu\n{line}") for text in problems(use)]
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_what_is_asked_of_the_allocator_exists() -> None:
    asked = {name for name in vars(DeviceMemory) if not name.startswith("_")}
    assert asked
    of_device = {"Event", "device_count", "empty_cache", "get_device_name", "get_device_properties", "synchronize"}
    assert asked | of_device <= torch_npu_wheel.namespace_names()


def test_environment_variables_are_read_by_torch_npu() -> None:
    library = torch_npu_wheel.wheel().read(torch_npu_wheel.LIBRARY)
    sources = torch_npu_wheel.text(torch_npu_wheel.NAMESPACE_SOURCE).encode()
    assert [name for name in NPU().environment(tensor_parallel=1) if name.encode() not in library + sources] == []


def test_simulated_kernels_have_the_real_signatures() -> None:
    functions = ast.parse((SIMULATED / "kernels.py").read_text()).body
    kernels = {each.name: each for each in functions if isinstance(each, ast.FunctionDef) and each.name[:4] == "npu_"}
    assert kernels
    for name, node in kernels.items():
        arguments = ([each.arg for each in node.args.args], [each.arg for each in node.args.kwonlyargs])
        assert arguments in [_names(schema) for schema in torch_npu_wheel.schemas()[name]], name
        decorator = node.decorator_list[0]
        assert isinstance(decorator, ast.Name)
        assert (decorator.id == "differentiable_kernel") == (name in torch_npu_wheel.differentiable()), name


def test_simulated_of_the_selection_has_the_real_signatures() -> None:
    for name, method in (("", NsaSelectAttention.forward), ("_grad", NsaSelectAttention.backward)):
        parameters = list(inspect.signature(method).parameters.values())[1:]
        positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        schema = torch_npu_wheel.schemas()[f"npu_nsa_select_attention{name}"][0]
        assert (positional, named) == _names(schema)


def _names(schema: object) -> tuple[list[str], list[str]]:
    arguments = schema.arguments  # type: ignore[attr-defined]
    positional = [each.name for each in arguments if not each.kwarg_only]
    return positional, [each.name for each in arguments if each.kwarg_only]


def test_simulated_namespace_has_no_more_than_the_real_one() -> None:
    assert assigned((SIMULATED / "npu.py").read_text(), "__all__") <= torch_npu_wheel.namespace_names()


@pytest.mark.parametrize(
    "name",
    [
        "torch_fn_white_list",
        "torch_tensor_fn_white_list",
        "torch_module_fn_white_list",
        "device_kwargs_list",
    ],
)
def test_simulated_adaptor_wraps_no_more_than_the_real_one(name: str) -> None:
    simulated = (SIMULATED / "contrib" / "transfer_to_npu.py").read_text()
    assert assigned(simulated, name) <= assigned(torch_npu_wheel.text(torch_npu_wheel.ADAPTOR), name)
