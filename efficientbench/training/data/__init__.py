"""What a step reads: batches of text and of conversations, and the validation text."""
