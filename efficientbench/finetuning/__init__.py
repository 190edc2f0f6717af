"""Supervised fine-tuning of transformers models: methods, curriculum, costs."""
