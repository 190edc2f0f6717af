"""Code that every other package may use: errors, files, checksums, languages and the base of configurations."""
