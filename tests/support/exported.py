"""Models of ours that transformers has a class for."""

from __future__ import annotations

import torch
from support.configs import ATTENTIONS, tiny, tiny_model

from efficientbench.config.schema import RunConfig
from efficientbench.export.architectures import architecture_of
from efficientbench.export.families import CLASSES, attends

UNBIASED = "model.attention.qkv_bias=false"
TIED = "model.embedding_multiplier=1"
UNTIED = "model.tied=false"
UNWEIGHTED = "model.norm_weights=false"
SCALED = "model.position.scaling.original_seq_len=32"
WINDOWS = ["model.layers=3", "model.pattern=[swa,own]", "model.kinds.swa.attention.window=5"]
"""Three layers in a pattern that is cut, with a window in the first and the last."""
SINKS = ["model.attention.sinks=true"]
GATED = [
    *("model.attention.gate=true", "model.qk_norm=true", "model.norm_weights=zero_centred", "model.norm_epsilon=1e-3"),
    # More than one chunk of a recurrent layer, the last not full.
    "training.seq_len=72",
]
NOPE_KINDS = "model.kinds={swa: {attention: {window: 5}}, full: {position: {kind: none}}}"


def is_exported(name: str) -> bool:
    """Return whether the declaration of a model of ATTENTIONS names an exporter, of a class with such layers alone."""
    model = tiny_model(name).model
    return model.attention_variant.exporter is not None and attends(model)


CASES = {
    "gqa": ("gqa_1.5B", [], "qwen2", "Qwen2ForCausalLM"),
    "mqa": ("mqa_0.5B", ["model.position.base=500"], "qwen2", "Qwen2ForCausalLM"),
    "gqa with another tokenizer": ("gqa_1.5B", [], "own", "LlamaForCausalLM"),
    "gqa without bias": ("gqa_1.5B", [UNBIASED], "qwen2", "LlamaForCausalLM"),
    "gqa, scaled RoPE": ("gqa_1.5B", [SCALED, "model.position.scaling.factor=3"], "qwen2", "Qwen2ForCausalLM"),
    "mla, scaled RoPE": ("mla_1.5B", [SCALED], "own", "DeepseekV2ForCausalLM"),
    "wide heads": ("gqa_1.5B", ["model.head_dim=16"], "qwen2", "Qwen2ForCausalLM"),
    "none": ("none_1.5B", [], "own", "SmolLM3ForCausalLM"),
    "none without bias": ("none_1.5B", [UNBIASED], "own", "SmolLM3ForCausalLM"),
    "experts": ("moe_1.5Bx8", [], "own", "Qwen2MoeForCausalLM"),
    "experts, top 3": ("moe_0.5Bx8", ["model.moe.top_k=3", "model.moe.experts=5"], "own", "Qwen2MoeForCausalLM"),
    "experts without bias": ("moe_1.5Bx8", [UNBIASED], "own", "MixtralForCausalLM"),
    "experts, tied": ("moe_1.5Bx8", [TIED], "own", "Qwen2MoeForCausalLM"),
    "mla, tied": ("mla_1.5B", [TIED], "own", "DeepseekV2ForCausalLM"),
    "gqa, tied": ("gqa_1.5B", [TIED], "qwen2", "Qwen2ForCausalLM"),
    "gqa, two tables": ("gqa_1.5B", [UNTIED], "qwen2", "Qwen2ForCausalLM"),
    "gqa, two tables, no factor": ("gqa_1.5B", [UNTIED, TIED], "qwen2", "Qwen2ForCausalLM"),
    "gqa, norms without weights": ("gqa_1.5B", [UNWEIGHTED], "qwen2", "Qwen2ForCausalLM"),
    "qk_norm": ("gqa_1.5B", ["model.qk_norm=true"], "qwen2", "Qwen3ForCausalLM"),
    "qk_norm, unweighted": ("mqa_0.5B", ["model.qk_norm=true", UNBIASED, UNWEIGHTED], "qwen2", "Qwen3ForCausalLM"),
    "qk_norm with experts": ("moe_1.5Bx8", ["model.qk_norm=true", UNTIED], "own", "Qwen3MoeForCausalLM"),
    "qk_norm with experts, some layers dense": (
        "moe_1.5Bx8",
        [
            *("model.qk_norm=true", "model.layers=3", "model.first=[dense]", "model.pattern=[own,dense]"),
            *("model.kinds={dense: {moe: false, ffn_hidden_size: 56}}", "model.moe.normalized=false"),
        ],
        "own",
        "Qwen3MoeForCausalLM",
    ),
    "mla with shared experts": (
        "moe_fine_shared_1.5Bx8",
        ["model.attention.kind=mla", "model.moe.experts=6", "model.moe.top_k=3", "model.moe.scale=1.5"],
        "own",
        "DeepseekV3ForCausalLM",
    ),
    "mla with experts, first layer dense": (
        "moe_1.5Bx8",
        [
            *("model.attention.kind=mla", "model.moe.scores=sigmoid", "model.first=[dense]", UNTIED, UNWEIGHTED),
            "model.kinds={dense: {moe: false, ffn_hidden_size: 56}}",
        ],
        "own",
        "DeepseekV3ForCausalLM",
    ),
    "nanochat": ("nanochat_d12", [], "own", "NanoChatForCausalLM"),
    "nanochat with bias, tied, unbounded": (
        "nanochat_d12",
        [
            "model.tied=true",
            "model.attention.qkv_bias=true",
            "model.logit_softcap=null",
            "model.embedding_multiplier=3",
        ],
        "own",
        "NanoChatForCausalLM",
    ),
    "windows": ("gqa_1.5B", WINDOWS, "qwen2", "Qwen2ForCausalLM"),
    "windows with another tokenizer": ("gqa_1.5B", [*WINDOWS, SCALED], "own", "SmolLM3ForCausalLM"),
    "windows, two tables": ("gqa_1.5B", [*WINDOWS, UNTIED, UNWEIGHTED], "qwen2", "Qwen2ForCausalLM"),
    "windows with qk_norm": ("mqa_0.5B", [*WINDOWS, "model.qk_norm=true"], "qwen2", "Qwen3ForCausalLM"),
    "windows in every layer": ("gqa_1.5B", ["model.attention.window=5", UNBIASED], "own", "MistralForCausalLM"),
    "windows in every layer, with bias": ("gqa_1.5B", ["model.attention.window=5"], "qwen2", "Qwen2ForCausalLM"),
    "windows, full layers without positions": (
        "gqa_1.5B",
        ["model.layers=5", "model.pattern=[swa,swa,full]", NOPE_KINDS, "model.position.base=500", UNBIASED],
        "own",
        "SmolLM3ForCausalLM",
    ),
    "windows without positions": (
        "gqa_1.5B",
        ["model.pattern=[own,both]", "model.kinds={both: {attention: {window: 5}, position: {kind: none}}}"],
        "own",
        "SmolLM3ForCausalLM",
    ),
    "sinks": ("gqa_1.5B", ["model.attention.sinks=true"], "own", "GraniteSWAForCausalLM"),
    "sinks, windows, full layers without positions": (
        "gqa_1.5B",
        [*WINDOWS[:1], *SINKS, NOPE_KINDS, "model.pattern=[swa,swa,full]"],
        "own",
        "GraniteSWAForCausalLM",
    ),
    "sinks, bases by layer": (
        "mqa_0.5B",
        [*WINDOWS, *SINKS, UNBIASED, UNTIED, SCALED, "model.pattern=[own,swa]", "model.kinds.swa.position.base=500"],
        "own",
        "GraniteSWAForCausalLM",
    ),
    "GDN, every fourth gated": (
        "gqa_1.5B",
        [*GATED, UNBIASED, "model.layers=4", "model.pattern=[gdn,gdn,gdn,own]", "model.position.share=0.5"],
        "own",
        "Qwen3_5ForCausalLM",
    ),
    "GDN, two values for a key, two tables, bias": (
        "mqa_0.5B",
        [
            *(*GATED, UNTIED, SCALED, "model.pattern=[wide,own]"),
            "model.kinds={wide: {attention: {kind: gdn, value_heads: 4, value_dim: 12, convolution: 3}, "
            "position: {kind: none}, qk_norm: false}}",
        ],
        "own",
        "Qwen3_5ForCausalLM",
    ),
    "KDA, every fourth latent": (
        "mla_1.5B",
        ["model.layers=4", "model.pattern=[kda,kda,kda,own]", "model.position.kind=none", "training.seq_len=72"],
        "own",
        "KimiLinearForCausalLM",
    ),
    "KDA with experts, a first layer and a later one dense, tied, norms without weights": (
        "moe_fine_shared_1.5Bx8",
        [
            *("training.seq_len=72", "model.layers=4", "model.first=[dense]", "model.pattern=[kda,plain,own]"),
            *("model.attention.kind=mla", "model.position.kind=none", TIED, UNWEIGHTED),
            *("model.moe.experts=6", "model.moe.top_k=3", "model.moe.scale=1.5", "model.ffn_hidden_size=24"),
            "model.kinds={dense: {attention: {kind: kda, key_heads: 3, convolution: 3}, moe: false, "
            "ffn_hidden_size: 56}, kda: {attention: {kind: kda, key_heads: 3, convolution: 3}}, "
            "plain: {moe: false, ffn_hidden_size: 56}}",
        ],
        "own",
        "KimiLinearForCausalLM",
    ),
    "Mamba-2, every fourth full": (
        "gqa_1.5B",
        [
            *("model.layers=4", "model.pattern=[mamba2,mamba2,mamba2,own]", "training.seq_len=72"),
            "model.kinds={mamba2: {attention: {kind: mamba2, key_dim: 16, value_dim: 8}, position: {kind: none}}}",
        ],
        "own",
        "BambaForCausalLM",
    ),
    "Mamba-2 in two groups, two tables, norms without weights, half of scaled RoPE": (
        "mqa_0.5B",
        [
            *("training.seq_len=72", UNBIASED, UNTIED, UNWEIGHTED, SCALED, "model.position.share=0.5"),
            *("model.head_dim=16", "model.layers=3", "model.pattern=[own,wide]"),
            "model.kinds={wide: {attention: {kind: mamba2, key_heads: 2, key_dim: 12, value_dim: 8, convolution: 3, "
            "inner_size: 144}, position: {kind: none}}}",
        ],
        "own",
        "BambaForCausalLM",
    ),
    "mla, norms without weights": (
        "mla_1.5B",
        [UNWEIGHTED, UNTIED, "model.attention.q_lora_rank=20"],
        "own",
        "DeepseekV2ForCausalLM",
    ),
    **{
        f"{name}, as declared": (run, list(words), "own", CLASSES[architecture_of(tiny_model(name).model, False)])
        for name, (run, words) in ATTENTIONS.items()
        if is_exported(name)
    },
    "mla, compressed queries, widths of its own": (
        "mla_1.5B",
        ["model.attention.q_lora_rank=20", "model.attention.v_head_dim=8", "model.position.base=500"],
        "own",
        "DeepseekV2ForCausalLM",
    ),
}
"""Run, overrides, tokenizer (see the fixture `tokenizers`), class."""


def config_of(name: str, *overrides: str) -> RunConfig:
    """A tiny run of the matrix, whose weights are large enough to show in the logits."""
    return tiny(name, "model.vocab_size=301", "model.init_std=0.2", *overrides)


def checkpointed(weights: dict[str, torch.Tensor], padding: int = 3) -> dict[str, torch.Tensor]:
    """As a checkpoint has them: each expert by a name of its own, the embedding with rows that only pad it."""
    found = {}
    for name, weight in weights.items():
        if "mlp.experts." in name:
            for number, expert in enumerate(weight):
                found[name.replace("mlp.experts.", f"mlp.experts.{number}.")] = expert
        elif name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            found[name] = torch.cat([weight, weight.new_full((padding, weight.shape[1]), torch.nan)])
        else:
            found[name] = weight
    return found
