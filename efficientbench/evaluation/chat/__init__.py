"""Evaluation tasks whose questions are conversations."""
