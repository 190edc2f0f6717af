"""Tasks in the form of conversations."""
