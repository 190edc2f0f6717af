"""An attention variant to start from: latent attention, a layer of its own, whose scores have a factor.

docs/variants.md says what the layer gets, its shapes, and what each part of the project asks of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from efficientbench.architecture import mla
from efficientbench.architecture.variant import AttentionVariant

# Neither torch nor Megatron is imported at the top: `plan` reads this file without them.
if TYPE_CHECKING:
    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class Config(mla.MLAConfig):
    """The keys under model.attention: those of mla, and a factor."""

    kind: Any = Field(description="attention variant")
    score_factor: float = Field(default=1.0, gt=0, description="multiplies all scores")


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of the whole layer, projections included."""
    from megatron.core.transformer.spec_utils import ModuleSpec

    return ModuleSpec(module=_module(), params={"widths": model.attention, "position": position})


@cache
def _module() -> type:
    """Return the class of the layer, which only a rank needs, as it needs torch."""
    from efficientbench.model.attention.mla import MultiLatentAttention

    class Layer(MultiLatentAttention):
        """Its `_attend` computes whole sequences, its `_absorbed` continues from the latents that `_keep` keeps."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            assert isinstance(self.widths, Config)
            self.scale *= self.widths.score_factor

    return Layer


# Formulas, layouts and the state of decoding stay those of latent attention: change what your layer changes.
# efficientbench/architecture/variant.py says what each field means.
VARIANT: AttentionVariant = replace(
    mla.VARIANT,
    config=Config,
    layer=f"{__name__}:layer",
    # Once a class of transformers computes the same: "efficientbench.export.mla:EXPORTER".
    exporter=None,
    exportable=None,
    # The tiny models of check-variant, beside mla's own.
    further={**mla.VARIANT.further, "half the scores": ("model.attention.score_factor=0.5",)},
)
