"""Errors whose message is for the user."""


class DeviceError(ValueError):
    """The machine lacks what the run asks for."""
