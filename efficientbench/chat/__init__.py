"""Talking with a chat model: in the terminal, and over HTTP as OpenAI's clients speak it."""
