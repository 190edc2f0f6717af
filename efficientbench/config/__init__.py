"""What a run is: schema, loading, the named matrix, and the arithmetic of ranks. Imports neither torch nor megatron."""
