"""The order in which a fine-tuning sees its examples, and what that order changes."""
