"""The kernels of the models, apart from their structure: one file for each part, with the kernels of every device."""

from __future__ import annotations

import torch

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Compute dtypes by the names that configurations use."""
