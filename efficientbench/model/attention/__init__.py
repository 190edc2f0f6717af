"""Attention variants: each has a light declaration, which torch does not load for, and its layer in another file."""
