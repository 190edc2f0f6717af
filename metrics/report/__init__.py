"""What people look at, made from records alone: no accelerator, no torch, on any machine, at any time."""
