"""Which errors are the user's to mend: their text is the whole message, and no traceback is shown."""

from __future__ import annotations

from data_tools.errors import DataError
from efficientbench.config.errors import ConfigError
from efficientbench.devices.errors import DeviceError
from efficientbench.training.errors import TrainingError
from launchers.errors import LaunchError
from metrics.errors import MetricsError

USERS_MISTAKES = (ConfigError, DataError, DeviceError, LaunchError, MetricsError, TrainingError)


def is_users_mistake(error: BaseException) -> bool:
    """Whether `error` tells the user what to mend."""
    return isinstance(error, USERS_MISTAKES)
