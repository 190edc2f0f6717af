"""Sends a run's settings, scalars and figures to Weights & Biases, by its own package.

That package starts a process of its own, which sends. It reads no sensor here, captures no output and looks at no code.
Its environment variables apply: WANDB_MODE=offline keeps everything in the run's folder, and `wandb sync` sends it
later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from efficientbench.basics.errors import MetricsError

FINISH_LIMIT_S = 60.0
"""Time for the last scalars to arrive; those that do not stay in the folder, for `wandb sync`."""
BY_TOKENS = ("by_tokens/train_loss", "by_tokens/validation_loss")
"""Scalars over the tokens trained on; all others are over steps."""
MISSING = "wandb: Weights & Biases is not installed: pip install 'efficientbench[wandb]'"


def check_wandb(project: str) -> None:
    """Raise MetricsError if the package wandb is not installed, by which a project of Weights & Biases gets a run."""
    found = find_spec("wandb")
    # The folder `wandb` that a run may have left here is a package without a file.
    if found is None or found.origin is None:
        raise MetricsError(MISSING)


class WandbLog:
    """One attempt of a run as a run of Weights & Biases; attempts and repeats of a run share its name as their group.

    Once the training has begun, no failure of Weights & Biases ends it: a warning says that nothing more is sent.

    Raises:
        MetricsError: wandb is not installed, or Weights & Biases takes no run of this user.
    """

    def __init__(self, project: str, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        """Start the run of Weights & Biases.

        Args:
            project: the project of Weights & Biases.
            folder: the run's folder; `wandb/` in it holds what is sent.
            name: the run's name.
            settings: the run's configuration.
        """
        try:
            import wandb
        except ImportError:
            raise MetricsError(MISSING) from None
        try:
            run = wandb.init(
                project=project,
                dir=str(folder),
                name=name,
                group=name,
                config=dict(settings),
                settings=wandb.Settings(
                    console="off",
                    disable_git=True,
                    finish_timeout=FINISH_LIMIT_S,
                    # The process may have a run already: of the user's own code, or of another project.
                    reinit="create_new",
                    save_code=False,
                    silent=True,
                    # Its sensors would disturb what is measured here.
                    x_disable_stats=True,
                    x_disable_meta=True,
                    x_save_requirements=False,
                ),
            )
        except wandb.Error as error:
            raise MetricsError(
                f"wandb: Weights & Biases takes no run: {error}; WANDB_MODE=offline keeps it here for `wandb sync`"
            ) from None
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise MetricsError(
                f"wandb: a setting is wrong, from an environment variable WANDB_… or wandb's own file: {wrong}"
            ) from None
        self._run: Any = run
        """The run of Weights & Biases; None once sending has failed."""
        self._complete = False
        for axis in ("step", "tokens"):
            run.define_metric(axis, hidden=True)
        for scalar in BY_TOKENS:
            run.define_metric(scalar, step_metric="tokens")
        run.define_metric("*", step_metric="step")
        if not run.disabled:
            where = f"wandb sync {run.sync_dir}" if run.offline else run.url
            print(f"Weights & Biases: {where}", flush=True)

    def scalars(self, axis: str, place: int, values: Mapping[str, float | None]) -> None:
        """Send values by name at a place on the axis `step` or `tokens`; skip a value of None."""
        given = {name: value for name, value in values.items() if value is not None}
        self._send(lambda run: run.log({axis: place, **given}))

    def figures(self, values: Mapping[str, Any]) -> None:
        """Send the figures of a recorded run, for the table of runs; skip a figure of None."""
        given = {name: value for name, value in values.items() if value is not None}
        self._send(lambda run: run.summary.update(given))
        self._complete = True

    def close(self) -> None:
        """Send the rest; a run without figures counts as failed."""
        self._send(lambda run: run.finish(exit_code=0 if self._complete else 1))
        self._run = None

    def _send(self, what: Callable[[Any], object]) -> None:
        if self._run is None:
            return
        try:
            what(self._run)
        except Exception as error:
            # The process of wandb may have been killed, or its disk may be full.
            print(
                f"warning: Weights & Biases gets no more of this run: {str(error) or type(error).__name__}", flush=True
            )
            self._run = None
