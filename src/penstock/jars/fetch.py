"""Jars from the lock into the user cache.

Rules
- The cache is complete or it is told: `fetch` returns every file of the group, verified, or raises.
- A file gets its place by an atomic rename after its checksum was right; a reader never sees half a file.
- One process downloads at a time; the others wait and find the files there.
- The repository answers 429 to bursts, which Ivy reports like any other failure: wait, ask again for what is missing
  only, and give up after some rounds that brought nothing.
- A wrong checksum ends the fetch; the file is removed from both caches.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import platformdirs

from penstock.errors.catalogue import JAR_CHECKSUM, JAR_FETCH
from penstock.jars import ivy
from penstock.jars.guard import exclusive
from penstock.jars.lock import Group, Jar, load_lock

_PAUSES = (2.0, 4.0, 8.0, 16.0, 30.0)  # seconds between rounds that brought nothing
_OFFLINE_ROUNDS = 2  # no host, no answer: waiting long does not help
_WAIT_FOR_OTHERS = 900.0


class Progress(Protocol):
    """Told once per file and at each pause: how many of how many are there, and a word about the last one."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


Marks = dict[str, tuple[str, int, int]]  # path below the cache -> sha256, size, mtime in ns


def cache_dir() -> Path:
    """Where jars live: `jars` below PENSTOCK_CACHE, or below the user's cache directory."""
    override = os.environ.get("PENSTOCK_CACHE")
    base = Path(override).expanduser() if override else platformdirs.user_cache_path("penstock", appauthor=False)
    return base / "jars"


def fetch(group: Group, progress: Progress | None = None) -> list[Path]:
    """The files of a group, in the order of the lock. Downloads what is missing; silent and instant otherwise."""
    return fetch_jars(load_lock().group(group), cache_dir(), progress)


def fetch_jars(
    jars: Sequence[Jar],
    cache: Path,
    progress: Progress | None = None,
    *,
    pauses: Sequence[float] = _PAUSES,
    wait: Callable[[float], None] = time.sleep,
    patience: float = _WAIT_FOR_OTHERS,
) -> list[Path]:
    """`fetch` with everything given."""
    if missing_jars(jars, cache):
        try:
            with exclusive(cache / ".lock", patience):
                _download(jars, cache, progress or _silent, pauses, wait)
        except TimeoutError as cause:
            raise JAR_FETCH.error(f"Another process has been fetching jars for {patience:.0f} s.") from cause
    return [cache / jar.path for jar in jars]


def missing_jars(jars: Sequence[Jar], cache: Path) -> list[Jar]:
    """Jars without a file that was verified before and has not been touched since."""
    marks = _read_marks(cache)
    return [jar for jar in jars if not _vouched(jar, cache, marks)]


def _vouched(jar: Jar, cache: Path, marks: Marks) -> bool:
    mark = marks.get(jar.path)
    if mark is None or mark[0] != jar.sha256:
        return False
    try:
        found = (cache / jar.path).stat()
    except FileNotFoundError:
        return False
    return (found.st_size, found.st_mtime_ns) == (mark[1], mark[2])


def _download(
    jars: Sequence[Jar], cache: Path, progress: Progress, pauses: Sequence[float], wait: Callable[[float], None]
) -> None:
    staging = cache / ".ivy"
    missing = _keep_right_files(missing_jars(jars, cache), cache)
    _harvest(missing, staging, cache)  # a fetch that was cut short left its files here
    missing = missing_jars(jars, cache)
    empty_rounds = 0
    while missing:
        report = _Report(progress, total=len(jars), done=len(jars) - len(missing))
        outcome = ivy.run([jar.coordinate for jar in missing], staging, on_line=report.line)
        _harvest(missing, staging, cache)
        before, missing = len(missing), missing_jars(jars, cache)
        if not missing:
            break
        empty_rounds = empty_rounds + 1 if len(missing) == before else 0
        if empty_rounds >= len(pauses) or (outcome.offline and empty_rounds >= _OFFLINE_ROUNDS):
            names = ", ".join(str(jar.coordinate) for jar in missing[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            error = JAR_FETCH.error(f"{names}{more} could not be fetched.")
            error.detail["ivy"] = "\n".join(outcome.tail)
            raise error
        # jitter: machines that were refused together should not come back together
        pause = pauses[max(empty_rounds - 1, 0)] * random.uniform(0.8, 1.2)
        progress(len(jars) - len(missing), len(jars), f"the repository is busy, next try in {pause:.0f} s")
        wait(pause)
    shutil.rmtree(staging, ignore_errors=True)


def _keep_right_files(jars: Sequence[Jar], cache: Path) -> list[Jar]:
    """Mark files that are in place but unmarked (restored from a backup, touched); what is left must be fetched."""
    left: list[Jar] = []
    for jar in jars:
        path = cache / jar.path
        if path.is_file() and _sha256(path) == jar.sha256:
            _mark(jar, cache)
        else:
            path.unlink(missing_ok=True)
            left.append(jar)
    return left


def _harvest(jars: Sequence[Jar], staging: Path, cache: Path) -> None:
    """Move what Ivy brought to its place, each file after its checksum was right."""
    for jar in jars:
        source = ivy.cached(staging, jar.coordinate)
        if not source.is_file():
            continue
        found = _sha256(source)
        if found != jar.sha256:
            shutil.rmtree(source.parent)  # Ivy's notes about the file, too: the next run must ask again
            raise JAR_CHECKSUM.error(
                f"{jar.coordinate} has the SHA-256 {found}, the lock file says {jar.sha256}; the file was removed."
            )
        target = cache / jar.path
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        _mark(jar, cache)


class _Report:
    """Ivy's output as progress: one step per finished file."""

    def __init__(self, progress: Progress, *, total: int, done: int) -> None:
        self._progress, self._total, self._done = progress, total, done
        progress(done, total, "asking the repository")

    def line(self, line: str) -> None:
        if "[SUCCESSFUL ]" in line:
            self._done = min(self._done + 1, self._total)
            name = line.partition("!")[2].partition("(")[0].strip() or "a jar"
            self._progress(self._done, self._total, name)


def _silent(done: int, total: int, what: str) -> None:
    del done, total, what


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _marks_file(cache: Path) -> Path:
    return cache / ".verified.json"


def _read_marks(cache: Path) -> Marks:
    try:
        raw = json.loads(_marks_file(cache).read_text(encoding="utf-8"))
        return {path: (str(sha), int(size), int(mtime)) for path, (sha, size, mtime) in raw.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError):
        return {}  # damaged: every file is looked at again


def _mark(jar: Jar, cache: Path) -> None:
    found = (cache / jar.path).stat()
    marks = _read_marks(cache)
    marks[jar.path] = (jar.sha256, found.st_size, found.st_mtime_ns)
    temporary = _marks_file(cache).with_suffix(".tmp")
    temporary.write_text(json.dumps(marks, indent=0, sort_keys=True), encoding="utf-8")
    temporary.replace(_marks_file(cache))
