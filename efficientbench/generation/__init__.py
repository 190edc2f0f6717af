"""Text from a trained model: open the run's folder, continue prompts step by step, and sample on the host."""
