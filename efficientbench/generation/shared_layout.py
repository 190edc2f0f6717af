"""Check which ranks can share a model that only computes forward passes."""

from __future__ import annotations

from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.schema import ParallelConfig, RunConfig


def check_shared(config: RunConfig, parallel: ParallelConfig, devices: int, oversubscribe: bool) -> None:
    """Refuse a layout in which ranks cannot compute the forward passes of a run's model.

    Args:
        config: the run.
        parallel: tp and dp of the ranks.
        devices: of this machine.
        oversubscribe: whether ranks may share a device.

    Raises:
        ConfigError: the message has every reason.
    """
    changes = {"recompute": "none", "micro_batch_size": 1, "global_batch_size": parallel.dp}
    training = config.training.model_copy(update=changes)
    # Without its experts, each of which is as wide as the layer that they replace: where ranks that share one all route
    # a token, only gradients would count it twice.
    model = config.model.model_copy(update={"moe": None})
    shared = config.model_copy(update={"model": model, "parallel": parallel, "training": training})
    try:
        Layout.of(shared, devices, 1, oversubscribe)
    except ConfigError as error:
        raise ConfigError(str(error).replace("parallel.tp", "--tp").replace("parallel.dp", "--dp")) from None
