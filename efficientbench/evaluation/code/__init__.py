"""Programs that a model wrote, run in a sandbox."""
