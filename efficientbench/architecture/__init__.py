"""Declarations of attention variants and positional encodings, and the model that names them, without torch."""
