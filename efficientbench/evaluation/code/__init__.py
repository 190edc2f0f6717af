"""Run programs that a model wrote in a sandbox."""
