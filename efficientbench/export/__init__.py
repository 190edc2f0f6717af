"""Export a run's model as a folder that other programs load."""
