"""Scores of a trained model: tasks, their items one by one, and what follows from them."""
