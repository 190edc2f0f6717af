"""Evaluate a run's model on tasks of lm-eval."""
