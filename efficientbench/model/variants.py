"""The table of the project's own variants; of each kind the first is the default.

Neither this file nor what it imports may import torch or Megatron: configurations are read from the declarations.
"""

from __future__ import annotations

from efficientbench.model import position_variants
from efficientbench.model.attention import gqa_variant, mla_variant, nsa_variant

ATTENTION = (gqa_variant.VARIANT, mla_variant.VARIANT, nsa_variant.VARIANT)
POSITIONS = position_variants.VARIANTS
