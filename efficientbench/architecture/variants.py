"""The table of the project's own variants; the first attention and the first positional encoding are the defaults.

Neither this file nor what it imports may import torch or Megatron: configurations are read from the declarations.
"""

from __future__ import annotations

from efficientbench.architecture import gdn, gqa, kda, mamba2, mla, nsa, positions

ATTENTION = (gqa.VARIANT, mla.VARIANT, nsa.VARIANT, gdn.VARIANT, kda.VARIANT, mamba2.VARIANT)
POSITIONS = positions.VARIANTS
