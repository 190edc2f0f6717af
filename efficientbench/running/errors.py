"""Which errors are the user's to mend: their text is the whole message, and no traceback is shown."""

from __future__ import annotations

from efficientbench.config.errors import ConfigError
from efficientbench.data_tools.errors import DataError
from efficientbench.devices.base import DeviceError
from efficientbench.launchers.errors import LaunchError
from efficientbench.metrics.errors import MetricsError
from efficientbench.training.errors import TrainingError

USERS_MISTAKES = (ConfigError, DataError, DeviceError, LaunchError, MetricsError, TrainingError)


def is_users_mistake(error: BaseException) -> bool:
    """Whether `error` tells the user what to mend."""
    return isinstance(error, USERS_MISTAKES)
