"""What every other package may use: reading files of others, and checksums."""
