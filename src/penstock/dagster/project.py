"""The project behind a code location: its manifest, its settings, its store.

Rules
- Loading starts nothing: the manifest is read when it is newer than the project, else dbt parses, and parsing needs no
  engine.
- A process has one open store for a project; reading never creates one.
- A wrong project is an error of the catalogue, in one line.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from dagster_dbt import DbtProject

from penstock.control.health import DEFAULT_LIMITS, Limits
from penstock.errors import PenstockError
from penstock.errors.catalogue import DBT_FAILED, NOT_A_PROJECT
from penstock.paths import ProjectPaths
from penstock.project.durations import milliseconds
from penstock.project.live import is_live_test
from penstock.project.manifest import is_current
from penstock.project.model import is_dynamic_table
from penstock.project.profile import RuntimeSettings, load_profile, read_settings
from penstock.project.source import is_source_table, relation_of
from penstock.store import Desired, Store

Manifest = Mapping[str, Any]

_stores: dict[str, Store] = {}
_opening = threading.Lock()


@dataclass(frozen=True)
class Project:
    """One Penstock project."""

    directory: Path
    profiles: Path | None = None
    target: str | None = None
    limits: Limits = DEFAULT_LIMITS

    @classmethod
    def find(
        cls,
        directory: Path | str,
        profiles: Path | str | None = None,
        target: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Project:
        """The project in a directory; PEN-5001 when there is none."""
        found = Path(directory).expanduser().resolve()
        if not (found / "dbt_project.yml").is_file():
            raise NOT_A_PROJECT.error(f"There is no dbt_project.yml in {found}.")
        named = profiles or os.environ.get("DBT_PROFILES_DIR")
        places = [Path(named).expanduser().resolve()] if named else [found, found / "profiles"]
        with_file = [place for place in places if (place / "profiles.yml").is_file()]
        return cls(found, with_file[0] if with_file else None, target or os.environ.get("DBT_TARGET"), limits)

    @property
    def paths(self) -> ProjectPaths:
        return ProjectPaths(self.directory)

    @cached_property
    def target_path(self) -> Path:
        """Where dbt writes its artefacts."""
        content = yaml.safe_load((self.directory / "dbt_project.yml").read_text(encoding="utf-8")) or {}
        named = os.environ.get("DBT_TARGET_PATH") or content.get("target-path")
        return Path(named if isinstance(named, str) and "{" not in named else "target")

    @cached_property
    def dbt(self) -> DbtProject:
        return DbtProject(
            project_dir=self.directory,
            profiles_dir=self.profiles or Path.home() / ".dbt",
            target_path=self.target_path,
            target=self.target,
        )

    @cached_property
    def manifest(self) -> Manifest:
        """dbt's manifest, parsed now if the project is newer."""
        file = self.directory / self.target_path / "manifest.json"
        with _alone(file.parent):
            if not self._is_current(file):
                self._parse()
                _note_target(file, self.target)
            found: Manifest = json.loads(file.read_text(encoding="utf-8"))
        return found

    @cached_property
    def streams(self) -> dict[str, Mapping[str, Any]]:
        """Stream -> manifest entry of every dynamic table and every source table."""
        found = [node for node in self.manifest["nodes"].values() if is_dynamic_table(node)]
        found += [source for source in self.manifest["sources"].values() if is_source_table(source)]
        return {relation_of(entry): entry for entry in found}

    @cached_property
    def live_tests(self) -> dict[str, str]:
        """Stream -> unique id of every data test that a stream keeps."""
        found = [node for node in self.manifest["nodes"].values() if is_live_test(node)]
        return {relation_of(node): str(node["unique_id"]) for node in found}

    def strays(self) -> list[Desired]:
        """Streams that are deployed and that the manifest does not know: made beside a model, or left by one."""
        try:
            store = self.store()
            deployed = store.all_desired() if store else []
        except PenstockError:
            return []  # the sensors say what is wrong with the store
        return [want for want in deployed if want.stream not in {**self.streams, **self.live_tests}]

    def limits_of(self, stream: str) -> Limits:
        """The limits of a stream: its model's `max_lag`, else the project's."""
        node = self.streams.get(stream)
        length = milliseconds((node.get("config") or {}).get("max_lag")) if node else None
        return replace(self.limits, max_lag_seconds=length / 1000) if length else self.limits

    def settings(self) -> RuntimeSettings:
        """What the project was last started with; before the first start, and for another target, the profile."""
        try:
            saved = read_settings(self.paths)
        except PenstockError:
            saved = None
        if saved is not None and self.target in (None, saved.target):
            return saved
        return load_profile(self.directory, profiles_dir=self.profiles, target=self.target)

    def store(self) -> Store | None:
        """The deployment store; None when nothing was ever deployed."""
        where: Path | str = self.settings().store or self.paths.store
        if isinstance(where, Path) and not where.exists():
            return None
        with _opening:
            found = _stores.get(str(where))
            if found is None:
                found = _stores[str(where)] = Store.open(where)
        return found

    def _is_current(self, file: Path) -> bool:
        if not is_current(file, self.directory, self.profiles):
            return False
        return self.target is None or _noted_target(file) == self.target

    def _parse(self) -> None:
        line = [*dbt_command(), "parse", "--quiet", "--no-use-colors", "--project-dir", str(self.directory)]
        line += ["--profiles-dir", str(self.profiles)] if self.profiles else []
        line += ["--target", self.target] if self.target else []
        done = subprocess.run(line, cwd=self.directory, capture_output=True, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr).strip()
            raise DBT_FAILED.error(f"dbt could not parse the project: {said[-2000:]}")


def dbt_command() -> list[str]:
    """dbt of this Python's environment, which need not be on the PATH."""
    beside = Path(sys.executable).with_name("dbt")
    return [str(beside) if beside.exists() else "dbt"]


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time: the web server, the daemon and a run may load the same project together."""
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".penstock-parse.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _note_target(manifest: Path, target: str | None) -> None:
    # The manifest does not say for which target it was made.
    (manifest.parent / ".penstock-target").write_text(target or "", encoding="utf-8")


def _noted_target(manifest: Path) -> str | None:
    note = manifest.parent / ".penstock-target"
    try:
        if note.stat().st_mtime < manifest.stat().st_mtime - 5:
            return None  # somebody else has written the manifest since
        return note.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
