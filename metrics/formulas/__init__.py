"""Definitions of the metrics, and statistics, as plain functions."""
