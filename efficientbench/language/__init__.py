"""The language in which help and checks speak."""
