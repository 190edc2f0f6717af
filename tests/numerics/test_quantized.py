"""Weights of fewer bits: products, rounding, and what models of them hold, read and widen."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
import torch
from oracles.oracle import build, relative_error, text
from oracles.quantized import dequantized
from support.configs import ATTENTIONS, FINE, PATTERN, chosen, decodes, has_matrices, tiny, tiny_model
from support.reads import Reads
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import weight_bytes_read
from efficientbench.costs.quantization import disk_bytes, quantized_matrices, weight_bytes
from efficientbench.devices import quantized
from efficientbench.devices.quantized import Form, form_of
from efficientbench.model.cache import Cache
from efficientbench.model.kernels import quantized as kernels
from efficientbench.model.kernels.quantized import (
    Cast,
    Float8,
    Float8OnCuda,
    Int8,
    QuantizedWeight,
    check_here,
    quantized_weight,
)

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"fp32": 2e-6, "bf16": 1e-2, "fp16": 1e-3}
INT8, FP8 = Quantization(weights="int8"), Quantization(weights="fp8")
CASTS = [Quantization(weights="bf16"), Quantization(weights="fp16")]
INT4 = [
    Quantization(weights="int4", group=group, symmetric=even) for group in (32, 64, 128, 256) for even in (True, False)
]
SHAPES = [(1, 1), (7, 33), (48, 64), (65, 200), (16, 513)]
"""Outputs and inputs: one value, odd ones, whole groups, and more rows and columns than a kernel's blocks."""
NAMES = [*chosen(ATTENTIONS, lambda config: decodes(config) and has_matrices(config)), "moe", FINE, PATTERN]


def weight_of(outputs: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Random weights, a row of zeros among them, and one that is far from the others."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs + inputs)) * 0.02
    weight[-1, -1] = 0.9
    if outputs > 1:
        weight[0] = 0
    return weight.to(dtype)


def meant(stored: QuantizedWeight, weight: torch.Tensor) -> torch.Tensor:
    """The weight [O, I] in float64 that a quantized one stands for; check the rounding."""
    form = stored.form
    if isinstance(stored, Cast):
        found = stored.codes.double()
        # Half a step, and of fp16 one near zero.
        most = weight.double().abs() * torch.finfo(stored.codes.dtype).eps / 2 + 2**-25
    elif isinstance(stored, Float8):
        scales = stored.scales.double()[: len(weight), None]
        found = stored.codes.double()[: len(weight), : weight.shape[1]] * scales
        # Three bits behind the first one, or steps of 2^-9 near zero; the scale's own rounding moves the largest value.
        most = weight.double().abs() * (2**-4 + torch.finfo(weight.dtype).eps) + scales * 2**-10
    else:
        symmetric = form.quantization.symmetric
        found, most = dequantized(weight, form.kernel.bits, form.group, symmetric)
    assert ((weight.double() - found).abs() <= most).all()
    return found


def as_multiplied(x: torch.Tensor, stored: QuantizedWeight) -> torch.Tensor:
    """An input [..., I] in float64 as the product reads it: rounded to 16 bits, or in fp8 on a GPU row by row."""
    if isinstance(stored, Cast):
        return x.to(stored.codes.dtype).double()
    if not isinstance(stored, Float8OnCuda):
        return x.double()
    scales = x.float().abs().amax(-1, keepdim=True) / 448
    return (x.float() / scales).to(torch.float8_e4m3fn).double() * scales.double()


ON_CPU = [("cpu", each, dtype) for each in (INT8, *INT4, FP8, *CASTS) for dtype in DTYPES]
ON_CUDA = [
    *(("cuda", each, dtype) for each in (INT8, *CASTS) for dtype in DTYPES),
    *(("cuda", each, "bf16") for each in (*INT4, FP8)),
]


@pytest.mark.parametrize(
    ("device", "quantization", "dtype"),
    [*ON_CPU, *(pytest.param(*each, marks=pytest.mark.gpu) for each in ON_CUDA)],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_a_product_is_that_with_the_rounded_weight_and_takes_the_bytes_of_the_formula(
    device: str, quantization: Quantization, dtype: str
) -> None:
    form = form_of(quantization, device, dtype)
    try:
        check_here(form, device)
    except ConfigError as error:
        pytest.skip(str(error))
    most = max(TOLERANCE[dtype], TOLERANCE.get(quantization.weights, 0))
    for outputs, inputs in SHAPES:
        weight = weight_of(outputs, inputs, DTYPES[dtype])
        stored = quantized_weight(weight.to(device), form)
        x = torch.randn(3, 2, inputs, generator=torch.Generator().manual_seed(1)).to(DTYPES[dtype])
        expected = as_multiplied(x, stored) @ meant(copy.deepcopy(stored).cpu(), weight).t()
        # Not a contiguous input: a part of a wider projection is none.
        for given in (x.to(device), torch.cat([x, x], dim=-1).to(device)[..., :inputs]):
            assert stored(given).dtype == DTYPES[dtype]
            assert relative_error(stored(given).cpu().double(), expected) < most
        assert sum(each.nbytes for each in stored.buffers()) == form.bytes(outputs, inputs)


def test_a_device_that_lacks_a_kernel_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # No torch_npu is here, as on a chip that is not known.
    with pytest.raises(ConfigError, match="--weights int8: .* are documented for Ascend A2 and A3"):
        check_here(form_of(INT8, "npu", "bf16"), "npu")
    int8, fp8 = (form_of(each, "cuda", "bf16") for each in (INT8, FP8))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    check_here(int8, "cuda")
    with pytest.raises(ConfigError, match=r"--weights fp8: .* need compute capability 8\.9, and this GPU has 8\.0"):
        check_here(fp8, "cuda")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 9))
    check_here(fp8, "cuda")
    monkeypatch.setattr("torch.version.hip", "6.4")
    for form in (int8, fp8):
        with pytest.raises(ConfigError, match="is proposed for NVIDIA's GPUs, and this one is AMD's"):
            check_here(form, "cuda")


@pytest.mark.parametrize("quantization", [INT8, INT4[0], INT4[1], FP8], ids=lambda each: each.name)
def test_shards_of_a_weight_multiply_as_their_own_rounding_says(quantization: Quantization) -> None:
    form, weight = form_of(quantization, "cpu", "fp32"), weight_of(24, 130, torch.float32)
    x = torch.randn(5, 130, generator=torch.Generator().manual_seed(1))
    by_outputs = [(quantized_weight(part, form), part) for part in weight.chunk(2, dim=0)]
    found = torch.cat([stored(x) for stored, _ in by_outputs], dim=-1)
    expected = x.double() @ torch.cat([meant(*each) for each in by_outputs]).t()
    assert relative_error(found.double(), expected) < TOLERANCE["fp32"]
    by_inputs = [(quantized_weight(part, form), part) for part in weight.chunk(2, dim=1)]
    parts = zip(by_inputs, x.chunk(2, dim=1), strict=True)
    sums = [(stored(some), some.double() @ meant(stored, part).t()) for (stored, part), some in parts]
    found, expected = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
    assert relative_error(found.double(), expected) < TOLERANCE["fp32"]


def quantize(config: RunConfig, quantization: Quantization) -> tuple[GPT, Form]:
    from efficientbench.model.quantize import quantize as quantize_model

    form, model = form_of(quantization, "cpu", config.training.dtype), build(config).eval()
    quantize_model(model, config.model, form)
    return model, form


def with_meant_weights(config: RunConfig, form: Form) -> GPT:
    """The model in full width, with the values that its quantized weights stand for."""
    model = build(config).eval()
    for layer, kind in zip(model.decoder.layers, config.model.layer_kinds, strict=True):
        for name in quantized_matrices(config.model.views[kind]):
            weight = layer.get_parameter(name)
            for each in weight.data if weight.dim() == 3 else [weight.data]:
                each.copy_(meant(quantized_weight(each, form), each.clone()))
    return model


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quantization", [INT8, INT4[1]], ids=lambda each: each.name)
@torch.no_grad()
def test_a_quantized_model_computes_with_the_rounded_weights_and_holds_their_bytes(
    name: str, quantization: Quantization, single_rank: None
) -> None:
    from efficientbench.model.quantize import held_bytes, left_out

    config = tiny_model(name)
    model, form = quantize(config, quantization)
    tokens = text(config, 16)
    assert relative_error(model(tokens), with_meant_weights(config, form)(tokens)) < 1e-5
    whole = build(config)
    # Beside the weights, models hold counters and tables, which no formula of weights counts.
    beside = held_bytes(whole) - weight_bytes(config.model, "fp32", None)
    assert held_bytes(model) - beside == weight_bytes(config.model, "fp32", form)
    full = {name: each.nbytes for name, each in whole.named_parameters() if each.dim() > 1}
    matrices = sum(
        config.model.layer_kinds.count(kind) * stack.parameters
        for kind, view in config.model.views.items()
        for stack in quantized_matrices(view).values()
    )
    assert sum(left_out(model).values()) == sum(full.values()) - 4 * matrices
    assert "embedding.word_embeddings.weight" in left_out(model)


@pytest.mark.parametrize("quantization", CASTS, ids=lambda each: each.name)
@torch.no_grad()
def test_a_model_whose_weights_are_cast_holds_their_bytes(quantization: Quantization, single_rank: None) -> None:
    from efficientbench.model.quantize import held_bytes

    config = tiny_model("gqa")
    (model, form), whole = quantize(config, quantization), build(config).eval()
    tokens = text(config, 16)
    assert 0 < relative_error(model(tokens), whole(tokens)) < 5 * TOLERANCE[quantization.weights]
    expected = weight_bytes(config.model, "fp32", form)
    assert held_bytes(model) - expected == held_bytes(whole) - weight_bytes(config.model, "fp32", None)
    # Nothing is padded, and nothing is beside the weights.
    assert disk_bytes(config.model, "fp32", quantization) == expected
    assert weight_bytes(config.model, "bf16", form_of(quantization, "cpu", "bf16")) == weight_bytes(
        config.model, "bf16", None
    )


def a_step(model: GPT, mode: Any, rows: int = 1) -> None:
    """Compute a decoding step within a mode of torch."""
    cache = Cache(model, rows, 16)
    cache.fresh = False
    cache.lengths.fill_(15)
    with torch.no_grad(), cache.bound(), mode:
        model(torch.arange(rows)[:, None], only=torch.zeros(rows, dtype=torch.int64))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quantization", [INT8, INT4[0]], ids=lambda each: each.name)
def test_a_step_reads_the_bytes_of_the_formula(name: str, quantization: Quantization, single_rank: None) -> None:
    from efficientbench.generation.measuring.measure import _experts_touched

    config = tiny_model(name)
    model, form = quantize(config, quantization)
    packed = {place: each for place, module in model.named_modules() if isinstance(module, QuantizedWeight)
              for place, each in module.named_buffers(prefix=place)}  # fmt: skip
    watched = {**dict(model.named_parameters()), **packed}
    with _experts_touched(model) as touched:
        reads = Reads({place: each.detach() for place, each in watched.items()})
        a_step(model, reads)
    experts = float(sum(touched)) / len(touched) if touched else None
    found = reads.bytes()
    assert sum(found.values()) == pytest.approx(weight_bytes_read(config.model, 1, "fp32", experts, form), abs=0.5)


class Widened(TorchDispatchMode):
    """Notes the elements of every tensor of floating point that an operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            sizes = [
                each.numel()
                for each in tree_leaves(result)
                if isinstance(each, torch.Tensor) and each.is_floating_point()
            ]
            self.most = max([self.most, *sizes])
        return result


class WidensEachStep(Int8):
    """A planted fault: a full-width copy in each product."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ (self.codes.to(rows.dtype) * self.scales[:, None]).t()


class WidenedAtLoad(Int8):
    """A planted fault: a kernel that keeps the rounded weight in full width."""

    def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        stored = super().packed(weight)
        return {"codes": stored["codes"].to(weight.dtype) * stored["scales"][:, None], "scales": stored["scales"]}

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.codes.t()


SLIM = ("model.vocab_size=64", "model.hidden_size=64", "model.ffn_hidden_size=192", "model.position.kind=none")
"""A model whose weights are all larger than what a step of one row computes."""
SLIM_MODELS = {
    "fp32": ("gqa_1.5B",),
    "bf16": ("gqa_1.5B", "training.dtype=bf16"),
    "experts": ("moe_1.5Bx8",),
    "latents": ("mla_1.5B", "model.attention.kv_lora_rank=64"),
}


def widest(quantization: Quantization, run: str, *words: str) -> tuple[int, int, int]:
    """The largest tensor that a step makes, its largest allocation, and the smallest quantized weight, in elements.

    The second is by torch's allocator, which also sees what an operation takes and gives back within itself.
    """
    config = tiny(run, *SLIM, *words)
    model, form = quantize(config, quantization)
    step, memory = Widened(), torch.autograd.profiler.profile(profile_memory=True)
    a_step(model, step)
    a_step(model, memory)
    events: Any = memory.kineto_results
    allocated = max(event.nbytes() for event in events.events() if event.name() == "[memory]")
    [view] = config.model.views.values()
    smallest = min(stack.parameters // stack.copies for stack in quantized_matrices(view).values())
    return step.most, allocated // DTYPE_BYTES[form.dtype], smallest


@pytest.mark.parametrize("words", SLIM_MODELS.values(), ids=SLIM_MODELS)
@pytest.mark.parametrize("quantization", [INT8, INT4[1]], ids=lambda each: each.name)
def test_no_step_widens_a_weight(quantization: Quantization, words: tuple[str, ...], single_rank: None) -> None:
    made, allocated, smallest = widest(quantization, *words)
    assert 0 < made < smallest
    assert 0 < allocated < smallest


def test_weights_that_are_widened_are_found(monkeypatch: pytest.MonkeyPatch, single_rank: None) -> None:
    from efficientbench.model.quantize import held_bytes

    monkeypatch.setitem(kernels.CLASSES, quantized.INT8, WidensEachStep)
    for words in SLIM_MODELS.values():
        made, allocated, smallest = widest(INT8, *words)
        assert made >= smallest
        assert allocated >= smallest
    monkeypatch.setitem(kernels.CLASSES, quantized.INT8, WidenedAtLoad)
    config = tiny("gqa_1.5B", *SLIM)
    model, form = quantize(config, INT8)
    assert held_bytes(model) > 1.05 * weight_bytes(config.model, "fp32", form)


def test_a_second_model_shares_quantized_weights(single_rank: None) -> None:
    from efficientbench.model.gpt import same_model
    from efficientbench.model.quantize import held_bytes

    config = tiny_model("moe")
    model, _ = quantize(config, INT8)
    another = same_model(model, config, torch.device("cpu"))
    tokens = text(config, 16)
    with torch.no_grad():
        assert torch.equal(model(tokens), another(tokens))
    assert held_bytes(torch.nn.ModuleList([model, another])) < 1.1 * held_bytes(model)
