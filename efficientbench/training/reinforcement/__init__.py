"""Learning from rewards of what the model itself writes (GRPO, arXiv 2402.03300, without its clipping)."""
