"""Records of measured generations."""
