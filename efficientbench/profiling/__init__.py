"""Profiles: the time of a run's last steps by kind of work, beside the device's roofline."""
