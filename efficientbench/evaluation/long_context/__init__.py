"""Long-context evaluation: hidden facts, and the loss at each position."""
