"""Checks on a rank with the simulated NPU: our kernels against the CPU's, waits of the host, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from oracles.oracle import relative_error
from oracles.quantized import dequantized
from torch.utils._python_dispatch import TorchDispatchMode

from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.devices.quantized import form_of

Compute = Callable[..., torch.Tensor]

HEADS, GROUPS, BATCH, SEQUENCE = 4, 2, 2, 40


def _error(compute: Compute, inputs: list[torch.Tensor], trained: list[int]) -> float:
    """Return the largest relative difference between NPU and CPU, in output and gradients of `trained` inputs."""
    results = []
    for device in ("cpu", "npu"):
        here = [each.to(device).requires_grad_(index in trained) for index, each in enumerate(inputs)]
        out = compute(*here)
        assert out.device.type == device
        seed = torch.arange(out.numel(), dtype=torch.float32).cos().view(out.shape).to(out.dtype)
        grads = torch.autograd.grad(out, [here[index] for index in trained], seed.to(device))
        results.append([each.detach().cpu().float() for each in (out, *grads)])
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for theirs, ours in zip(*results, strict=True))


def kernel_errors() -> dict[str, float]:
    """Return the relative error of each kernel's output and gradients against the CPU's, in float32."""
    from efficientbench.model.kernels import biased_attention, causal_attention, norm, npu_fused, rope, swiglu

    torch.manual_seed(0)
    # Several blocks of queries, the last one not full.
    npu_fused.BIAS_ROWS = 16
    query = torch.randn(SEQUENCE, BATCH, HEADS, 24)
    key, value = (torch.randn(SEQUENCE, BATCH, GROUPS, dim) for dim in (24, 24))
    narrow = torch.randn(SEQUENCE, BATCH, GROUPS, 16)
    angles = torch.rand(SEQUENCE, 1, 1, 8)
    bias = torch.randn(HEADS, SEQUENCE)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return causal_attention.causal_attention(q, k, v, 0.3)

    def attend_with_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return biased_attention.biased_causal_attention(q, k, v, 0.3, b)

    return {
        "grouped heads": _error(attend, [query, key, value], [0, 1, 2]),
        "values narrower than keys": _error(attend, [query, key, narrow], [0, 1, 2]),
        "the last queries of a sequence": _error(attend, [query[-16:], key, value], [0, 1, 2]),
        "a bias that is trained": _error(attend_with_bias, [query, key, value, bias], [0, 1, 2, 3]),
        "a bias that is not": _error(attend_with_bias, [query, key, value, bias], [0, 1, 2]),
        "norm": _error(lambda x, w: norm.rms_norm(x, w, 1e-6), [torch.randn(5, 3, 48), torch.randn(48)], [0, 1]),
        "norm without weights": _error(lambda x: norm.rms_norm(x, None, 1e-6), [torch.randn(5, 3, 48)], [0]),
        "rope on all of a head": _error(rope.rotate, [query[..., :16], angles.cos(), angles.sin()], [0]),
        "rope on a head's end": _error(rope.rotate, [query, angles.cos(), angles.sin()], [0]),
        "swiglu": _error(swiglu.swiglu, [torch.randn(7, 2, 32)], [0]),
    }


def nsa_errors() -> dict[str, float]:
    """Return the relative error of NSA's compressed and window branch and their gradients; 1 for another choice."""
    from efficientbench.model.kernels import npu_fused
    from efficientbench.model.kernels.nsa.choose_blocks import Choice
    from efficientbench.model.kernels.nsa.range_attention import range_attention
    from efficientbench.model.kernels.nsa.reach import Reach

    assert npu_fused.serves("npu")
    torch.manual_seed(0)
    query = torch.randn(BATCH, SEQUENCE, HEADS, 24)
    key, value, short_key, short_value = (torch.randn(BATCH, keys, 24) for keys in (SEQUENCE, SEQUENCE, 19, 19))
    past, choice = Reach(length=4, stride=2), Choice(block=8, count=4, length=4, stride=2)
    chosen = [
        range_attention(*(each.to(device) for each in (query, short_key, short_value)), 0.3, past, choice)[1].cpu()
        for device in ("cpu", "npu")
    ]
    ours, theirs = (each.sort(dim=-1).values for each in chosen)

    def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return range_attention(q, k, v, 0.3, Reach(width=12))[0]

    def compressed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return range_attention(q, k, v, 0.3, past, choice)[0]

    return {
        "window": _error(window, [query, key, value], [0, 1, 2]),
        "compressed": _error(compressed, [query, short_key, short_value], [0, 1, 2]),
        "choice": float(not torch.equal(ours, theirs)),
    }


def nsa_operators(sequence: int) -> int:
    """Return how many operators NSA's compressed branch, its choice and its window are, forward and backward."""
    from efficientbench.model.kernels.nsa.choose_blocks import Choice
    from efficientbench.model.kernels.nsa.range_attention import range_attention
    from efficientbench.model.kernels.nsa.reach import Reach

    query, key, value, short_key, short_value = (
        torch.randn(1, length, *heads, 8).to("npu").requires_grad_()
        for length, heads in ((sequence, (2,)), (sequence, ()), (sequence, ()), *[(sequence // 2 - 1, ())] * 2)
    )
    choice = Choice(block=8, count=4, length=4, stride=2)
    for _ in range(2):  # the first pass makes the masks that live on
        with Waits() as seen:
            compressed, _ = range_attention(query, short_key, short_value, 0.3, Reach(4, 2), choice)
            window, _ = range_attention(query, key, value, 0.3, Reach(width=12))
            (compressed + window).sum().backward()
    return seen.operators


def grouped_matmul_errors(dtype: torch.dtype) -> tuple[float, float]:
    """Return the relative errors of the grouped matmul and of its weight gradient; one group has no rows."""
    from efficientbench.model.kernels.grouped_mm import RowGroups, accumulate_weight_gradient, grouped_mm

    torch.manual_seed(0)
    sizes = torch.tensor([3, 0, 7, 2])
    x, weights = torch.randn(12, 8, dtype=dtype), torch.randn(4, 8, 16, dtype=dtype)
    results = []
    for device in ("cpu", "npu"):
        groups = RowGroups(sizes.to(device), torch.device(device))
        out = grouped_mm(x.to(device), weights.to(device), groups)
        gradient = torch.ones(4, 16, 8, device=device)
        accumulate_weight_gradient(x.to(device), out, groups, gradient)
        results.append((out.cpu().float(), gradient.cpu()))
    (out, gradient), (ours, our_gradient) = results
    difference = (ours - out).abs().max() / out.abs().max()
    return float(difference), float((our_gradient - gradient).abs().max() / gradient.abs().max())


class Waits(TorchDispatchMode):
    """Record of the operators whose results the host must wait for."""

    BY_NAME = ("_local_scalar_dense", "masked_select", "nonzero", "_unique2")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.operators = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        on_npu = any(isinstance(each, torch.Tensor) and each.device.type == "npu" for each in args)
        to_host = on_npu and isinstance(out, torch.Tensor) and out.device.type == "cpu"
        if to_host or (on_npu and name in self.BY_NAME):
            self.seen.append(name)
        self.operators += 1
        return out


def waits_of_a_mixture(config: RunConfig) -> tuple[list[str], list[str], int]:
    """Return the host's waits in a layer's forward pass and in its backward pass, and the latter's operators."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.update.optimizer import wrap_data_parallel

    device = torch.device("npu:0")
    with groups.model_parallel(config.parallel, config.training.seed):
        model = wrap_data_parallel(build_stages(config, device)[0], config)
        x = torch.randn(16, 2, config.model.hidden_size, dtype=torch.bfloat16).to(device).requires_grad_()
        with Waits() as forward:
            out, _ = model.module.decoder.layers[0].mlp(x)
        with Waits() as backward:
            out.backward(torch.ones_like(out))
    return forward.seen, backward.seen, backward.operators


def refusals() -> dict[str, str]:
    """Return the simulated device's errors for calls that the real one would refuse."""
    import torch_npu

    on_npu = torch.randn(4, 2, 8, device="npu")
    mask = torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)
    attempts: dict[str, Callable[[], object]] = {
        "reduce float64": lambda: dist.all_reduce(torch.zeros(1, dtype=torch.float64, device="npu")),
        "mix devices": lambda: on_npu + torch.randn(4, 2, 8),
        "give a kernel a host tensor": lambda: torch_npu.npu_swiglu(on_npu.cpu()),
        "mask upside down": lambda: torch_npu.npu_fusion_attention(
            on_npu, on_npu, on_npu, 2, "SBH", atten_mask=~mask, sparse_mode=2
        ),
        "mask of the sequence's size": lambda: torch_npu.npu_fusion_attention(
            on_npu, on_npu, on_npu, 2, "SBH", atten_mask=mask[:4, :4], sparse_mode=2
        ),
        "an unknown layout": lambda: torch_npu.npu_fusion_attention(on_npu, on_npu, on_npu, 2, "SBD"),
        "gradient of a grouped matmul": lambda: torch_npu.npu_grouped_matmul(
            [on_npu[:, 0].requires_grad_()], [torch.zeros(1, 8, 2, device="npu")]
        ),
    }
    errors = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (RuntimeError, ValueError) as error:
            errors[name] = str(error)
    return errors


def double_becomes_float() -> torch.dtype:
    """Return the dtype after a cast to float64."""
    return torch.zeros(2, device="npu").double().dtype


def quantized_errors(keys: Sequence[dict[str, Any]]) -> list[float]:
    """Return the largest relative error of the products of each quantization, in bf16; check the stored bytes."""
    from efficientbench.model.kernels.quantized import check_here, quantized_weight

    found = []
    for each in keys:
        form = form_of(Quantization.model_validate(each), "npu", "bf16")
        check_here(form, "npu")
        for outputs, inputs in ((8, 64), (13, 200), (40, 33)):
            torch.manual_seed(outputs)
            weight, x = torch.randn(outputs, inputs).bfloat16(), torch.randn(3, 2, inputs).bfloat16()
            stored = quantized_weight(weight.to("npu"), form)
            meant, _ = dequantized(weight, form.kernel.bits, form.group, form.quantization.symmetric)
            expected = x.double() @ meant.t()
            found.append(relative_error(stored(x.to("npu")).cpu().double(), expected))
            assert sum(buffer.nbytes for buffer in stored.buffers()) == form.bytes(outputs, inputs)
    return found
