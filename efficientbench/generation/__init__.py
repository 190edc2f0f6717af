"""Text from a trained model: the run's folder opened, prompts continued step by step, sampled on the host."""
