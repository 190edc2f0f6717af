"""Read rows as examples of prompt and answer, and tokenize them."""
