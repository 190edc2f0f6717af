"""Products with weights of fewer bits, which no step widens to a copy of their full width.

A weight [O, I] is rounded to the nearest of few values, group by group of each row: weight ≈ scale · (code − offset).
N = rows of the input, O = outputs, I = inputs, G = groups of a row.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F

from efficientbench.basics.errors import ConfigError
from efficientbench.devices import quantized
from efficientbench.devices.quantized import Form, Kernel
from efficientbench.model.kernels import TORCH_DTYPES, npu_fused
from efficientbench.model.kernels.grouped_mm import RowGroups
from efficientbench.model.kernels.npu_fused import torch_npu

LARGEST_FP8 = 448.0
"""Largest value of float8_e4m3fn."""
WIDENED_ROWS = 128
"""Rows of an fp8 weight that a CPU widens at once."""
FP8_FROM = (8, 9)
"""Compute capability of the first GPUs with products in fp8."""


def rounded(
    weight: torch.Tensor, bits: int, group: int | None, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round a weight [O, I] to the nearest codes.

    A symmetric scale is max|w| / ((2^bits − 1) / 2), as in compressed-tensors; else (max − min) / (2^bits − 1), where
    zero is between them and one of the values. Scales are rounded to the weight's dtype before codes are chosen.

    Returns:
        Codes [O, I] int32 from −2^(bits − 1); scales [O, G] in the weight's dtype; offsets [O, G] float32.
    """
    parts = weight.float().unflatten(1, (-1, group or weight.shape[1]))
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    levels, least = 2**bits - 1, -(2 ** (bits - 1))
    span = 2 * torch.maximum(high, -low) if symmetric else high - low
    # Not by a number, of whose reciprocal a GPU makes a product: its scales would differ in the last bit, and with them
    # the code of a row's largest weight, which lies between two.
    scales = (span / span.new_full((), levels)).clamp(min=torch.finfo(weight.dtype).tiny).to(weight.dtype)
    wide = scales.float()
    offsets = torch.zeros_like(wide) if symmetric else (least - low / wide).round().clamp(least, least + levels)
    codes = (parts / wide[..., None] + offsets[..., None]).round().clamp(least, least + levels)
    return codes.flatten(1).int(), scales, offsets


class QuantizedWeight(torch.nn.Module):
    """A quantized weight [O, I] as its kernel stores it, which multiplies its input as `F.linear` does."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor

    def __init__(self, weight: torch.Tensor, form: Form) -> None:
        """Quantize `weight` [O, I]."""
        super().__init__()
        self.form, (self.outputs, self.inputs) = form, weight.shape
        rows, columns = form.padded(self.outputs, self.inputs)
        self.missing, self.group = columns - self.inputs, form.group or columns
        weight = F.pad(weight.detach(), (0, self.missing, 0, rows - self.outputs))
        for name, tensor in self.packed(weight).items():
            self.register_buffer(name, tensor.contiguous(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [..., I] · weightᵀ → [..., O]."""
        rows = x.reshape(-1, self.inputs)
        rows = F.pad(rows, (0, self.missing)) if self.missing else rows.contiguous()
        return self.product(rows)[:, : self.outputs].reshape(*x.shape[:-1], self.outputs)

    def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what is stored of a padded weight, by name."""
        raise NotImplementedError

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply contiguous rows [N, padded I] → [N, padded O]."""
        raise NotImplementedError

    def rounded(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return codes, scales and offsets of a padded weight."""
        return rounded(weight, self.form.kernel.bits, self.form.group, self.form.quantization.symmetric)


class Int8(QuantizedWeight):
    """Codes [O, I] int8 and a scale of each row, [O]."""

    def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        codes, scales, _ = self.rounded(weight)
        return {"codes": codes.to(torch.int8), "scales": scales[:, 0]}

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(rows, self.codes, self.scales)


class Int4(QuantizedWeight):
    """Two codes in a byte, in torch's own order, and [G, O, 2]: weight = (code + 8 − 8) · scale + shift."""

    scales_and_shifts: torch.Tensor

    def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        codes, scales, offsets = self.rounded(weight)
        shifts = (-offsets * scales.float()).to(scales.dtype)
        together = torch.stack([scales, shifts], dim=-1).transpose(0, 1)
        return {"codes": self.in_order(codes + 8), "scales_and_shifts": together}

    def in_order(self, codes: torch.Tensor) -> torch.Tensor:
        """Pack codes [O, I] from 0 to 15."""
        return torch._convert_weight_to_int4pack_for_cpu(codes, 1)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm_for_cpu(rows, self.codes, self.group, self.scales_and_shifts)


class Int4OnCuda(Int4):
    """The same in the order of tensor cores."""

    def in_order(self, codes: torch.Tensor) -> torch.Tensor:
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
        return torch._convert_weight_to_int4pack(pairs, 8)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm(rows, self.codes, self.group, self.scales_and_shifts)


class Float8(QuantizedWeight):
    """Weights [O, I] in float8_e4m3fn and a scale of each row, [O]; a CPU widens a few rows at a time."""

    def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        scales = _fp8_scales(weight).to(weight.dtype)
        codes = (weight.float() / scales.float()[:, None]).clamp(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn)
        return {"codes": codes, "scales": scales}

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        parts = [rows @ some.to(rows.dtype).t() for some in self.codes.split(WIDENED_ROWS)]
        return torch.cat(parts, dim=1) * self.scales


class Float8OnCuda(Float8):
    """The same; the rows of the input are rounded too, each by a scale of its own."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        scales = _fp8_scales(rows)[:, None]
        codes = (rows.float() / scales).to(torch.float8_e4m3fn)
        return torch._scaled_mm(codes, self.codes.t(), scales, self.scales.float()[None], out_dtype=rows.dtype)


def _fp8_scales(rows: torch.Tensor) -> torch.Tensor:
    """Return the scale of each row [N, I], in float32."""
    return (rows.float().abs().amax(1) / LARGEST_FP8).clamp(min=torch.finfo(rows.dtype).tiny)


class Cast(QuantizedWeight):
    """Weights [O, I] in bf16 or fp16, to which the input is rounded too; the output has the input's dtype."""

    def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"codes": weight.to(TORCH_DTYPES[self.form.quantization.weights])}

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows.to(self.codes.dtype), self.codes).to(rows.dtype)


class OnNPU(QuantizedWeight):
    """Codes [I, O] int8, or [I, O / 8] int32 of eight 4-bit codes; scales and offsets [G, O]."""

    def packed(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        codes, scales, offsets = self.rounded(weight)
        wide, four = codes.t().contiguous(), self.form.kernel.bits == 4
        stored = torch_npu().npu_convert_weight_to_int4pack(wide) if four else wide.to(torch.int8)
        # The kernel adds offsets to codes.
        added = {"offsets": (-offsets).to(scales.dtype).t()} if self.form.has_offsets else {}
        return {"codes": stored, "scales": scales.t(), **added}

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        offsets = self.offsets if self.form.has_offsets else None
        group = self.group if len(self.scales) > 1 else 0
        return torch_npu().npu_weight_quant_batchmatmul(
            rows, self.codes, self.scales, antiquant_offset=offsets, antiquant_group_size=group
        )


class QuantizedExperts(torch.nn.Module):
    """The quantized weights of all experts on this rank, in place of one weight [E, O, I]."""

    def __init__(self, weight: torch.Tensor, form: Form) -> None:
        """Quantize `weight` [E, O, I]."""
        super().__init__()
        self.outputs = weight.shape[1]
        self.experts = torch.nn.ModuleList(quantized_weight(each, form) for each in weight.detach())

    def forward(self, x: torch.Tensor, groups: RowGroups) -> torch.Tensor:
        """Multiply x [N, I], grouped by expert, of which an expert without rows reads nothing → [N, O]."""
        parts = zip(self.experts, x.split(groups.sizes), strict=True)
        products = [expert(rows) for expert, rows in parts if len(rows)]
        return torch.cat(products) if products else x.new_empty(0, self.outputs)


CLASSES: dict[Kernel, type[QuantizedWeight]] = {
    quantized.INT8: Int8,
    quantized.INT4_CPU: Int4,
    quantized.INT4_CUDA: Int4OnCuda,
    quantized.FP8_CPU: Float8,
    quantized.FP8_CUDA: Float8OnCuda,
    quantized.INT8_NPU: OnNPU,
    quantized.INT4_NPU: OnNPU,
    **dict.fromkeys(quantized.CASTS.values(), Cast),
}


def quantized_weight(weight: torch.Tensor, form: Form) -> QuantizedWeight:
    """Return a weight [O, I] in the form that its kernel multiplies."""
    return CLASSES[form.kernel](weight, form)


def check_here(form: Form, device_type: str) -> None:
    """Raise ConfigError where this machine's device of the type lacks what the kernel needs."""
    why = ""
    if form.kernel in quantized.CASTS.values():
        return
    if device_type == "npu" and not npu_fused.serves(device_type):
        why = npu_fused.UNDOCUMENTED
    elif device_type == "cuda" and torch.version.hip is not None:
        why = f"{form.kernel.name} is proposed for NVIDIA's GPUs, and this one is AMD's"
    elif form.kernel is quantized.FP8_CUDA and (have := torch.cuda.get_device_capability()) < FP8_FROM:
        why = f"products in fp8 need compute capability 8.9, and this GPU has {'.'.join(map(str, have))}"
    if why:
        raise ConfigError(f"--weights {form.quantization.weights}: {why}")


def replace_module(module: torch.nn.Module, place: str, new: torch.nn.Module) -> None:
    """Put a module in place of a module or parameter of this name."""
    parent, _, name = place.rpartition(".")
    owner = module.get_submodule(parent)
    # A module cannot be assigned over a parameter.
    delattr(owner, name)
    setattr(owner, name, new)


def share_quantized(model: torch.nn.Module, another: torch.nn.Module, device: torch.device) -> None:
    """Give `another`, of the same configuration, the quantized weights of `model`; on one device both share them."""
    for place, module in list(model.named_modules()):
        # Not the single experts inside of QuantizedExperts.
        if isinstance(module, QuantizedExperts | QuantizedWeight) and ".weight.experts." not in place:
            same = all(each.device == device for each in module.buffers())
            replace_module(another, place, module if same else copy.deepcopy(module).to(device))
