"""Where a project keeps what it runs: everything below `.penstock/`, so that deleting it forgets all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProjectPaths:
    """The directories of one project."""

    project: Path

    @property
    def home(self) -> Path:
        return self.project / ".penstock"

    @property
    def store(self) -> Path:
        return self.home / "store.db"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def warehouse(self) -> Path:
        return self.home / "warehouse"

    @property
    def metastore(self) -> Path:
        return self.home / "metastore"

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    @property
    def jobs(self) -> Path:
        return self.home / "jobs"

    @property
    def kafka(self) -> Path:
        return self.home / "kafka"

    @property
    def engine(self) -> Path:
        """Endpoint file and scratch space of the running engine."""
        return self.home / "engine"

    def checkpoint(self, stream: str, checkpoint_id: str) -> Path:
        return self.checkpoints / safe_name(stream) / checkpoint_id

    def job(self, stream: str, generation: int) -> Path:
        return self.jobs / safe_name(stream) / str(generation) / "job.py"


def safe_name(stream: str) -> str:
    """A file name for a stream: letters, digits, dot, dash and underscore only."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", stream)
