"""How documents become tokens on disk."""
