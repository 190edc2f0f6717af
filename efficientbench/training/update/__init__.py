"""What a step changes: optimizers, learning rate, decay."""
