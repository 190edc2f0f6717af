"""The names of NSA's kernels, and their work beyond its formulas."""

from __future__ import annotations

from efficientbench.architecture.nsa import keys_of_last_query, nsa_keys, selected_score_flops
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import AttentionWork
from efficientbench.model.kernels.npu_fused import UNDOCUMENTED
from efficientbench.model.kernels.nsa import range_attention, range_attention_flex, selected_attention
from efficientbench.model.kernels.nsa.choose_blocks import SelectionShape, chunks
from efficientbench.model.kernels.nsa.reach import Reach
from efficientbench.model.kernels.own_kernels import OwnKernels

WHY_SLOW = {"cuda": "FlexAttention needs Triton", "npu": UNDOCUMENTED}
"""Device type → why its kernel for the compressed and the window branch does not run."""


def _names(config: RunConfig, device_type: str) -> dict[str, str]:
    selection = selected_attention.kernel_name(device_type, SelectionShape.of(config, nsa_keys(config.model)))
    ranges = range_attention.kernel_name(device_type)
    return {"nsa_compression": ranges, "nsa_selection": selection, "nsa_window": ranges}


def _fallbacks(config: RunConfig, device_type: str) -> dict[str, str]:
    if device_type not in WHY_SLOW:
        return {}
    names, found = _names(config, device_type), {}
    if names["nsa_window"] == range_attention.NAME:
        found = {"nsa_compression": WHY_SLOW[device_type], "nsa_window": WHY_SLOW[device_type]}
    if names["nsa_selection"] == selected_attention.NAME:
        found["nsa_selection"] = "the device's own kernel is not installed, or does not take these shapes"
    return found


def _work(config: RunConfig, device_type: str) -> AttentionWork:
    names, again = _names(config, device_type), 0
    if names["nsa_selection"] == selected_attention.NAME:
        again += selected_score_flops(config.model, config.training.seq_len)
    if names["nsa_compression"] != range_attention.NAME:
        again += _choice_flops(config, names["nsa_compression"] == range_attention_flex.NAME)
    return AttentionWork(again=again)


def _choice_flops(config: RunConfig, fuse: bool) -> int:
    """Count the FLOPs per token of scores that are computed again to choose blocks, after attention discarded them.

    `fuse`: whether compiled kernels choose.
    """
    model, training, nsa = config.model, config.training, nsa_keys(config.model)
    keys = max(keys_of_last_query(nsa, training.seq_len).compressed, 1)
    heads = training.micro_batch_size * model.heads // config.parallel.tp
    past = Reach(nsa.compress_block, nsa.compress_stride)
    scores = sum((stop - first) * seen for first, stop, seen in chunks(training.seq_len, keys, past, heads, fuse))
    return 2 * model.heads * model.head_dim * scores // training.seq_len


KERNELS = OwnKernels(_names, _fallbacks, _work)
