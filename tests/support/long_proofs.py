"""Proofs that `tests/run.sh --all` leaves out, and `tests/run.sh -m long` runs: they repeat at length what it tries.

Cells of a matrix whose row and column have others, the longest of several kinds, and whole stories of which each part
has a test of its own.
"""

from __future__ import annotations

import re

SHAPES = "gqa, one group|mla, latent queries|gdn, two values for a key"
"""Further shapes of attentions."""
LONG = {
    # Products of layouts: of gqa and mla alone.
    "distributed/test_layouts.py": rf"\[({SHAPES})-(.* x |.*recomputation)|\[(nsa|gdn|moe)-.* x |\[mla-fused"
    r"|\[moe over .*micro-batches of 1",
    "distributed/test_resume.py": rf"\[({SHAPES})|\[(gqa|moe) to .*plain optimizer|interleaved to"
    r"|\[(mla|gdn) by Muon",
    "distributed/test_smoke_runs.py": r"\[(nsa|swa|gdn|nanochat|mla)",
    "distributed/test_whole_steps.py": r"by Muon, (PP 2|TP 2 with SP)|\[.*absolute.*, PP 2, DP 2"
    r"|\[gqa, (PP 2|DP 2, plain)",
    "distributed/test_simulated_npu.py": r"_matches_the_cpu\[(nanochat_d12|relative_1.5B|sinks).*-1\]",
    "end_to_end/test_chat_stages.py": r"test_sft_after_base",
    "end_to_end/test_evaluation_ranks.py": r"test_expert_parallel_ranks|test_several_ranks_write",
    "end_to_end/test_export.py": r"recorded_loss\[(gqa|Qwen3|moe)|fine_tuned\[(gqa|windows)",
    "end_to_end/test_finetuning.py": r"test_two_nodes|test_a_sweep_trains",
    "end_to_end/test_finetuning_damage.py": r"test_a_hostile_file.*\[run[12]",
    "end_to_end/test_import.py": r"fine_tuned\[smollm3|learns_conversations\[granite",
    "end_to_end/test_outside_plugins.py": r"test_a_fine_tuning_of_two_ranks",
    "end_to_end/test_outside_variants.py": r"passes_the_check\[(gqa|mla)|passes_the_check_in_a_pattern",
    "end_to_end/test_parent.py": r"(killed_attempts|complete_repeat).*\[fine-tuning",
    "end_to_end/test_paths.py": r"chinese_paths.*\[GBK",
    "end_to_end/test_resume.py": r"test_repeats_resume",
    "end_to_end/test_sft_variants.py": r"\[nsa-moe-absolute",
    "end_to_end/test_speedrun.py": r"test_the_simulated_npu",
    "end_to_end/test_speedrun_kills.py": r"test_a_kill_in_any_stage",
    "end_to_end/test_speedrun_smoke.py": r"test_a_smoke_speedrun",
    "end_to_end/test_study.py": r"test_a_killed_study",
    "end_to_end/test_survival.py": r"killed_ten_times",
    "end_to_end/test_sweep.py": r"test_two_sweeps",
    "end_to_end/test_gpu_speed.py": r"test_a_rehearsal_measures",
    "unit/model/test_gpu_kernels.py": r"\[10\]",
    "unit/training/test_gpu_step.py": r"\[(relative|mla_1.5B parallel|gqa_1.5B parallel.[cp]p)"
    r"|\[moe_0.5Bx8 parallel.ep|\[32768\]",
}
"""File below tests/ → which of its tests, by name and case."""


def is_long(file: str, name: str) -> bool:
    """Return whether the test `name` of `file`, a path below tests/, is left out of `--all`."""
    return file in LONG and re.search(LONG[file], name) is not None
