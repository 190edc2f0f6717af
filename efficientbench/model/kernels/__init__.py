"""Which kernel serves this device: the arithmetic of the models, apart from their structure."""
