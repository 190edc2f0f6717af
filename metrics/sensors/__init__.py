"""Read devices: one file for each source of readings; `base` defines what a sensor is."""
