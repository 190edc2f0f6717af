"""Reinforcement learning in a rank: rollouts before a step, and pass@k."""
