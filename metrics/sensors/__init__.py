"""One file for each source of readings; `base` says what a sensor is."""
