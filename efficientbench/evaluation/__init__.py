"""Evaluate a trained model: tasks, the results of their items, and their summaries."""
