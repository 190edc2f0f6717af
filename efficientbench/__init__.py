"""EfficientBench: which LLM architecture to pretrain, for the least memory, time and energy per unit of quality."""
