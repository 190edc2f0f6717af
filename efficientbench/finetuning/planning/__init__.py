"""What a fine-tuning will need, by formulas, without torch."""
