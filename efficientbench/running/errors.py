"""Which errors the user can mend; imports nothing heavy, for the command line to print a mistake at once."""

from __future__ import annotations

from efficientbench.config.errors import ConfigError
from efficientbench.data_tools.errors import DataError
from efficientbench.devices.base import DeviceError
from efficientbench.launchers.errors import LaunchError
from efficientbench.metrics.errors import MetricsError
from efficientbench.training.errors import TrainingError

USERS_MISTAKES = (ConfigError, DataError, DeviceError, LaunchError, MetricsError, TrainingError)
"""Errors that the user can mend: their text is the whole message, and no traceback is printed."""
