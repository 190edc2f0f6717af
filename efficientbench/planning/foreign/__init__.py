"""Models that a config.json of transformers describes, counted without building them: shapes, readers, costs."""
