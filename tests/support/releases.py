"""Marks with which tests skip on releases of libraries that lack what they test."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version

TRANSFORMERS_5 = pytest.mark.skipif(
    Version(transformers.__version__).major < 5, reason=f"transformers {transformers.__version__} imports no models"
)
