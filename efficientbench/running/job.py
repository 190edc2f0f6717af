"""The job that the parent process hands to every rank, as a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from efficientbench.config.budget import Budget
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.files import write_whole


@dataclass(frozen=True)
class Job:
    """One run, ready to start: everything that a rank needs besides its own number."""

    config: RunConfig
    layout: Layout
    budget: Budget
    corpora: tuple[Path, ...]
    """The manifest of each source's corpus, in the order of `config.data.sources`."""
    output: Path
    resume: Path | None = None
    """The checkpoint to resume from; None: start at step 1. The first node's job decides for all."""

    def write(self, path: Path) -> None:
        """Write the job as JSON. Raises MetricsError where the file cannot be written."""
        content = {
            "config": self.config.model_dump(mode="json"),
            "layout": asdict(self.layout),
            "budget": asdict(self.budget),
            "corpora": [str(manifest) for manifest in self.corpora],
            "output": str(self.output),
            "resume": str(self.resume) if self.resume is not None else None,
        }
        write_whole(path, json.dumps(content, indent=2))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what `write` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            config=RunConfig.model_validate(content["config"]),
            layout=Layout(**content["layout"]),
            budget=Budget(**content["budget"]),
            corpora=tuple(Path(manifest) for manifest in content["corpora"]),
            output=Path(content["output"]),
            resume=Path(content["resume"]) if content["resume"] is not None else None,
        )
