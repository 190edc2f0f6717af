"""The update of a step: optimizers, learning rate, weight decay, and the check that gradients are finite."""
