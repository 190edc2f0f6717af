"""Training on megatron-core: process groups, data, optimizer and the loop. Emits events and computes no metric."""
