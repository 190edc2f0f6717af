"""The data of a step: micro-batches of text or conversations, and the validation text."""
