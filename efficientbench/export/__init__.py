"""A run's weights as a folder that other programs load."""
