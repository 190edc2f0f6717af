"""Costs of a model and of a run's ranks, as formulas of the configuration. Imports neither torch nor megatron."""
