"""The keys of the backbone against the decoder's formula in float64: logits, loss and every gradient."""

from __future__ import annotations

import pytest
import torch
from oracles.oracle import build, gradients_beside, text, weights_of
from oracles.plain_decoder import PlainDecoder
from support.configs import tiny, tiny_model

from efficientbench.architecture.registry import ATTENTION
from efficientbench.basics.errors import ConfigError

KEYS = {
    "norm_weights": "model.norm_weights=false",
    "embedding_norm": "model.embedding_norm=true",
    "qk_norm": "model.qk_norm=true",
    "activation": "model.activation=relu2",
    "tied": "model.tied=false",
    "logit_softcap": "model.logit_softcap=3",
    "qkv_bias": "model.attention.qkv_bias=false",
}
ALL = list(KEYS.values())
# Run, overrides.
CASES = {
    "defaults": ("gqa_1.5B", []),
    **{key: ("gqa_1.5B", [override]) for key, override in KEYS.items()},
    "zero-centred norms": ("gqa_1.5B", ["model.norm_weights=zero_centred", *ALL[1:3]]),
    "all": ("gqa_1.5B", ALL),
    "all with norm weights": ("gqa_1.5B", ALL[1:]),
    "all, one group": ("mqa_1.5B", ALL),
    "all, as many groups as heads": ("gqa_1.5B", [*ALL[1:], "model.attention.query_groups=4"]),
    "all but positions": ("none_1.5B", ALL),
    "all, recomputed": ("gqa_1.5B", [*ALL, "training.recompute=full"]),
    "all, attention recomputed": ("gqa_1.5B", [*ALL, "training.recompute=selective"]),
    "all with experts": ("moe_1.5Bx8", [*ALL, "model.moe.auxiliary_loss=0"]),
}


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("length", [13, pytest.param(1, marks=pytest.mark.proof)])
@pytest.mark.parametrize("case", CASES)
def test_logits_loss_and_gradients_equal_the_formula(case: str, length: int) -> None:
    name, overrides = CASES[case]
    # The loss's last block is smaller than the others; an epsilon of this size is seen.
    common = ["model.init_std=0.2", "model.norm_epsilon=1e-2", "kernels.loss_block_logits=700"]
    config = tiny(name, *common, f"training.seq_len={length}", *overrides)
    model = build(config).train()
    oracle = PlainDecoder(weights_of(model), config.model)
    gradients = gradients_beside(model, config, oracle)
    assert gradients.keys() == oracle.weights.keys()
    for parameter, weight in oracle.weights.items():
        assert weight.grad is not None, parameter
        # A single token attends to itself whatever its query and key: their gradients are zero but for rounding.
        scale = weight.grad.abs().max().clamp(min=1 if length == 1 else 0)
        assert (gradients[parameter] - weight.grad).abs().max() < 1e-5 * scale, parameter


@pytest.mark.usefixtures("single_rank")
def test_zero_centred_norms_begin_as_the_others_do() -> None:
    from efficientbench.model.gpt import build_stages

    config = tiny("gqa_1.5B", "model.qk_norm=true")
    zero_centred = tiny("gqa_1.5B", "model.qk_norm=true", "model.norm_weights=zero_centred")
    models = [build_stages(each, torch.device("cpu"))[0].eval() for each in (config, zero_centred)]
    assert not models[1].decoder.final_layernorm.weight.any()
    with torch.no_grad():
        plain, centred = (model(text(config, 16)) for model in models)
    assert torch.equal(plain, centred)


@pytest.mark.usefixtures("single_rank")
def test_a_zero_centred_norm_in_bf16_adds_to_1_what_bf16_would_lose_beside_it() -> None:
    from efficientbench.model.engine_config import transformer_config
    from efficientbench.model.layers import RMSNorm

    config = tiny("gqa_1.5B", "training.dtype=bf16", "model.norm_weights=zero_centred")
    norm = RMSNorm(transformer_config(config), 512, 1e-6)
    norm.weight.data.fill_(2**-9)
    x = torch.randn(100, 512, generator=torch.Generator().manual_seed(4)).bfloat16()
    wide = x.double() / (x.double().square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * (1 + 2**-9)
    assert (norm(x) == wide.bfloat16()).double().mean() > 0.99


@pytest.mark.parametrize("kind", [kind for kind, variant in ATTENTION.items() if not variant.qk_norm])
def test_head_norms_are_refused_where_they_are_undefined(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"qk_norm is defined for gqa alone, and attention\.kind is {kind}"):
        tiny_model(kind, "model.qk_norm=true")
