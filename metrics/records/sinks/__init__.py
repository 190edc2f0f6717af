"""Where a run's values go beside its record: TensorBoard, W&B and the step log."""
