"""What a training step's time goes to: from torch's trace of a few steps to a table, against the device's roofline."""
