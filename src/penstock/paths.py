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
    def registry(self) -> Path:
        """Data and address of the embedded schema registry, and schemas by their ids, which never change."""
        return self.home / "registry"

    @property
    def engine(self) -> Path:
        """Endpoint file and scratch space of the running engine."""
        return self.home / "engine"

    def checkpoint(self, stream: str, checkpoint_id: str) -> Path:
        """A rebuild's checkpoint is where its stream's are: it goes on with it once it has taken over."""
        return self.checkpoints / safe_name(original(stream)) / checkpoint_id

    def job(self, stream: str, generation: int) -> Path:
        return self.jobs / safe_name(stream) / str(generation) / "job.py"


_BESIDE = "penstock__rebuild__"


def beside(name: str) -> str:
    """The name of the stream, or of the table, that a rebuild runs beside the one of this name."""
    return f"{_BESIDE}{name}"


def is_beside(name: str) -> bool:
    return name.startswith(_BESIDE)


def original(name: str) -> str:
    """The stream that a rebuild is of; any other name as it is."""
    return name.removeprefix(_BESIDE)


def shown(text: str) -> str:
    """A text for people, who do not know the names that rebuilds have beside their streams."""
    return text.replace(_BESIDE, "")


def safe_name(stream: str) -> str:
    """A file name for a stream: letters, digits, dot, dash and underscore only."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", stream)
