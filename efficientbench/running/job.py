"""What the parent process hands to every rank."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from efficientbench.config.budget import Budget
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig


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
    """The checkpoint to go on from; None: begin with the first step. The first node's job decides for all."""

    def write(self, path: Path) -> None:
        """As JSON, beside its place and then renamed."""
        content = {
            "config": self.config.model_dump(mode="json"),
            "layout": asdict(self.layout),
            "budget": asdict(self.budget),
            "corpora": [str(manifest) for manifest in self.corpora],
            "output": str(self.output),
            "resume": str(self.resume) if self.resume is not None else None,
        }
        beside = path.with_suffix(".partial")
        beside.write_text(json.dumps(content, indent=2), encoding="utf-8")
        os.replace(beside, path)

    @classmethod
    def read(cls, path: Path) -> Job:
        """What `write` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            config=RunConfig.model_validate(content["config"]),
            layout=Layout(**content["layout"]),
            budget=Budget(**content["budget"]),
            corpora=tuple(Path(manifest) for manifest in content["corpora"]),
            output=Path(content["output"]),
            resume=Path(content["resume"]) if content["resume"] is not None else None,
        )
