"""Tokens on disk: the indexed format, the manifest, splits and checks."""
