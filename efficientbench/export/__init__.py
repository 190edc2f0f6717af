"""Models to and from transformers: export a run's model, import a folder as a run."""
