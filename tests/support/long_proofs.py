"""Proofs that `tests/run.sh --all` leaves out, and `tests/run.sh -m long` runs: they repeat at length what it tries.

Cells of a matrix whose row and column have others, the longest of several kinds, and whole stories of which each part
has a test of its own.
"""

from __future__ import annotations

import re

SHAPES = "gqa, one group|mla, latent queries|gdn, two values for a key"
"""Further shapes of attentions."""
LONG = {
    # Products of layouts are tried with gqa and mla.
    "distributed/test_layouts.py": rf"\[({SHAPES})-(.* x |.*recomputation)"
    r"|\[(nsa|gdn|kda|mamba2|moe)-.* x |\[(mla|moe)-fused"
    r"|\[moe over .*micro-batches of 1|\[(absolute|alibi|none|relative|learnable_absolute)-(data|context|interleaved)"
    r"|\[[^g].*-selective recomputation|\[(gdn|kda|mamba2)-(data|interleaved)|500_steps",
    "distributed/test_branches.py": r"\[(PP 2, Muon|DP 2, bf16, plain)",
    "distributed/test_expert_bias.py": r"follows_its_formula_for_long",
    "distributed/test_initialisation.py": r"\[(nsa|learnable|gqa_1.5B to TP 2)",
    "distributed/test_preflight.py": r"test_a_slowed_link|test_equal_ranks",
    "distributed/test_reinforcement.py": r"test_a_learnable_reward_rises",
    "distributed/test_resume.py": rf"\[({SHAPES})|\[(gqa|moe) to .*plain optimizer|interleaved to"
    r"|\[(mla|gdn|kda|mamba2|nsa) by Muon|\[(nsa|mla), TP 2, fp16|\[nsa to TP 2",
    "distributed/test_simulated_npu.py": r"test_training.*-1\]|muon_on.*gqa",
    "distributed/test_smoke_runs.py": r"",
    "distributed/test_whole_steps.py": r"by Muon, (PP 2|TP 2 with SP)|\[.*absolute.*, PP 2, DP 2"
    r"|\[gqa, (PP 2|DP 2, plain)|\[(nsa|gdn|kda|mamba2).*single",
    "end_to_end/test_branches.py": r"test_a_killed_branch",
    "end_to_end/test_chat.py": r"test_a_run_that_is_no_chat_model",
    "end_to_end/test_chat_stages.py": r"test_sft_after_base",
    "end_to_end/test_chat_tasks.py": r"test_chat_tasks_and_their_mean",
    "end_to_end/test_damaged_corpus.py": r"too_large_to_verify_first",
    "end_to_end/test_data_tools_prepare.py": r"killed_at_ten_random_moments",
    "end_to_end/test_evaluation.py": r"test_core_is_scored_while|test_a_killed_evaluation",
    "end_to_end/test_evaluation_ranks.py": r"test_expert_parallel_ranks|test_several_ranks_write",
    "end_to_end/test_export.py": r"recorded_loss\[(gqa|Qwen|moe|sinks|GDN|KDA|Mamba)|fine_tuned\[",
    "end_to_end/test_faults.py": r"test_a_hung_rank_on_another_node|all_and_is_named\[evaluate",
    "end_to_end/test_finetuning.py": r"test_two_nodes|test_a_sweep_trains|test_a_tiny_qwen",
    "end_to_end/test_finetuning_damage.py": r"test_a_hostile_file.*\[run[12]|flipped_optimizer_bits",
    "end_to_end/test_finetuning_layouts.py": r"",
    "end_to_end/test_generation.py": r"test_several_names|test_ctrl_c_prints_the_text_so_far\[2",
    "end_to_end/test_gpu_speed.py": r"test_a_rehearsal_measures",
    "end_to_end/test_hybrid_runs.py": r"test_a_window_hybrid_is_killed",
    "end_to_end/test_import.py": r"is_fine_tuned\[|learns_conversations\[granite|equal_bit_for_bit|in_fewer_bits",
    "end_to_end/test_initialisation.py": r"from_a_moved_folder",
    "end_to_end/test_memory_estimate.py": r"billion.*\[bf16|smoke_runs.*\[gqa_[01]",
    "end_to_end/test_outside_plugins.py": r"test_a_fine_tuning_of_two_ranks|test_an_adapter_of",
    "end_to_end/test_outside_variants.py": r"passes_the_check|variant_is_checked\[delta",
    "end_to_end/test_parent.py": r"(hung_rank|killed_attempts|complete_repeat|disk_that_fills).*\[fine-tuning",
    "end_to_end/test_paths.py": r"chinese_paths.*\[GBK",
    "end_to_end/test_profile.py": r"\[layout1",
    "end_to_end/test_reinforcement.py": r"test_a_sweep_over_optimizers|test_slow_rewards|joules.*\[rollouts|sample\[2"
    r"|test_a_disk_that_fills",
    "end_to_end/test_resume.py": r"test_repeats_resume|text_has_moved|test_a_run_stopped_and_then_killed",
    "end_to_end/test_sft_variants.py": r"\[nsa-moe-absolute",
    "end_to_end/test_simulated_npu.py": r"generated_text|scores_of_items|releases_its_memory|first_generation",
    "end_to_end/test_speedrun.py": r"test_the_simulated_npu",
    "end_to_end/test_speedrun_kills.py": r"test_a_kill_in_any_stage",
    "end_to_end/test_speedrun_smoke.py": r"test_a_smoke_speedrun",
    "end_to_end/test_stopping.py": r"test_a_stopped_run_is_set_aside",
    "end_to_end/test_study.py": r"test_two_calls",
    "end_to_end/test_survival.py": r"killed_ten_times",
    "end_to_end/test_sweep.py": r"test_two_sweeps|test_an_automatic_micro_batch|test_a_time_limit",
    "end_to_end/test_sweep_generation.py": r"without_retraining",
    "numerics/test_recurrence.py": r"interpreter\[(by channel|delta rule|.*-usual)",
    "numerics/test_recurrent.py": r"test_two_thousand_tokens.*\[(kda|mamba2)",
    "unit/model/test_gpu_kernels.py": r"test_kernels_fit\[9|\[(10|9-64)",
    "unit/training/test_gpu_step.py": r"few_kernels\[(relative|nsa|mla_1.5B|gqa_1.5B parallel.[cdp]p)"
    r"|few_kernels\[moe_0.5Bx8|\[32768\]",
}
"""File below tests/ → which of its tests, by name and case."""


def is_long(file: str, name: str) -> bool:
    """Return whether the test `name` of `file`, a path below tests/, is left out of `--all`."""
    return file in LONG and re.search(LONG[file], name) is not None
