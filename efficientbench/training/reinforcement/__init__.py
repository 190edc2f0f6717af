"""Reinforcement learning from rewards of the model's own completions (GRPO, arXiv 2402.03300, without clipping)."""
