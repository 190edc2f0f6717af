"""What lies on disk: indexed tokens, their manifest, splits and checks."""
