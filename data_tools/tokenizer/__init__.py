"""Tokenizers: their files, their training, and the engine that runs them."""
