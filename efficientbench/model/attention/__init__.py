"""The layers of the attention variants; their declarations, which load no torch, are in architecture/."""
