"""Archives of the lock, unpacked into the user cache.

Rules
- A directory gets its name by an atomic rename after the whole archive was unpacked; a reader never sees half of one.
- The name carries the archive's checksum's beginning, so that a new version never meets an old directory.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from penstock.errors.catalogue import JAR_FETCH
from penstock.jars.fetch import Progress, cache_dir, fetch_jars
from penstock.jars.guard import exclusive
from penstock.jars.lock import Group, load_lock

_PATIENCE = 300.0


def unpacked(group: Group, progress: Progress | None = None) -> Path:
    """The directory with the content of the group's one archive, fetched and unpacked if it is not there."""
    (jar,) = load_lock().group(group)
    place = cache_dir() / "unpacked" / f"{jar.coordinate.artifact}-{jar.coordinate.version}-{jar.sha256[:8]}"
    if place.is_dir():
        return place
    (archive,) = fetch_jars([jar], cache_dir(), progress)
    try:
        with exclusive(place.parent / ".lock", _PATIENCE):
            if not place.is_dir():
                _unpack(archive, place)
    except TimeoutError as cause:
        raise JAR_FETCH.error(f"Another process has been unpacking {archive.name} all the time.") from cause
    return place


def _unpack(archive: Path, place: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place.parent))
    try:
        with tarfile.open(archive) as content:
            content.extractall(draft, filter="data")
        draft.rename(place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
