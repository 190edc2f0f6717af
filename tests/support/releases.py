"""Marks with which tests skip on releases of libraries that lack what they test."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version

TRANSFORMERS_5 = pytest.mark.skipif(
    Version(transformers.__version__).major < 5, reason=f"transformers {transformers.__version__} imports no models"
)
TORCH_MUON = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason=f"torch {torch.__version__} has no Muon")
FLA_ON_CPU = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.7"), reason=f"with torch {torch.__version__}'s Triton, fla-core wants a GPU"
)
