"""How far back a model reads: hidden facts, and the loss at each position."""
