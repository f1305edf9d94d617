"""The engine as a process: start it, find it, end it. No Spark in here.

Rules
- The endpoint file is written by the engine when it is ready, readable by its owner only, and removed when it ends.
- The engine outlives a killed supervisor; the next one finds it by the endpoint file.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock import processes
from penstock.errors.catalogue import ENGINE_START
from penstock.paths import ProjectPaths


@dataclass(frozen=True)
class Endpoint:
    """Where the running engine answers."""

    pid: int
    started_at: float
    host: str
    port: int
    token: str
    ui: str | None
    engine_token: int  # of the lease "engine"

    @property
    def url(self) -> str:
        """Address for a Spark Connect client. Carries the token: never print it.

        Always `localhost`: for any other name PySpark wants TLS as soon as there is a token, and waits for ever.
        """
        return f"sc://localhost:{self.port}/;token={self.token}"

    def __repr__(self) -> str:
        return f"Endpoint(pid={self.pid}, host={self.host!r}, port={self.port})"


def endpoint_file(paths: ProjectPaths) -> Path:
    return paths.engine / "endpoint.json"


def write_endpoint(paths: ProjectPaths, endpoint: Endpoint) -> None:
    """Publish the endpoint, whole or not at all."""
    target = endpoint_file(paths)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(asdict(endpoint), out)
    draft.replace(target)


def read_endpoint(paths: ProjectPaths) -> Endpoint | None:
    """The engine that runs now; None when there is none or the file is a dead engine's."""
    try:
        endpoint = Endpoint(**json.loads(endpoint_file(paths).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return endpoint if processes.alive(endpoint.pid, endpoint.started_at) else None


def spawn(paths: ProjectPaths, *, env: dict[str, str] | None = None) -> int:
    """Start the engine in the background and return its pid; it is ready when its endpoint file is there."""
    command = [sys.executable, "-m", "penstock.engine.main", "--project-dir", str(paths.project)]
    try:
        return processes.spawn(command, log=paths.logs / "engine.log", cwd=paths.project, env=env)
    except OSError as problem:
        raise ENGINE_START.error(f"The engine could not be started: {problem}.") from problem
