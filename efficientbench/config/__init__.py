"""Configuration of a run: schema, loading, the named matrix, layout and length. Imports neither torch nor megatron."""
