"""Where a run's values go beside its record: TensorBoard, W&B, Prometheus and the step log."""
