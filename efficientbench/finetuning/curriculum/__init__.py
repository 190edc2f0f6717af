"""Curricula: the order in which a fine-tuning sees its examples, and the effect of that order."""
