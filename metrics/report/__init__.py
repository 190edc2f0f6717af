"""Reports, made from records alone: they need neither an accelerator nor torch."""
