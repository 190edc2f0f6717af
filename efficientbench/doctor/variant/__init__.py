"""Checks of one attention variant or positional encoding, and the file from which a new one starts."""
