"""Plan a fine-tuning's memory, traffic and time by formulas, without torch."""
