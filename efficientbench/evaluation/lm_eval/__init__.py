"""Tasks of lm-eval, asked of a run's model."""
