"""Compute the lock anew from its roots: for the developer who raises a version."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from penstock.errors.catalogue import JAR_FETCH
from penstock.jars import ivy
from penstock.jars.lock import Coordinate, Jar, Lock, Root

_PATTERN = "[organisation]/[artifact]/[revision]/file(-[classifier]).[ext]"


def relock(old: Lock) -> Lock:
    """The lock with every jar resolved and hashed again."""
    found: dict[Coordinate, tuple[str, int]] = {}
    groups: dict[Coordinate, set[str]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-lock-") as scratch:
        for name, root in old.roots.items():
            for path, coordinate in _resolve(root, Path(scratch) / name):
                content = path.read_bytes()
                found[coordinate] = (hashlib.sha256(content).hexdigest(), len(content))
                groups.setdefault(coordinate, set()).add(name)
    jars = tuple(Jar(c, sha, size, tuple(sorted(groups[c]))) for c, (sha, size) in sorted(found.items()))
    return Lock(old.roots, jars)


def _resolve(root: Root, scratch: Path) -> list[tuple[Path, Coordinate]]:
    files = scratch / "files"
    outcome = ivy.run(
        root.coordinates, scratch / "cache", transitive=root.transitive, extra=("-retrieve", f"{files}/{_PATTERN}")
    )
    if not outcome.complete:
        raise JAR_FETCH.error("The roots of the lock could not be resolved.", hint="\n".join(outcome.tail))
    return [(path, _coordinate(path.relative_to(files))) for path in sorted(files.rglob("*")) if path.is_file()]


def _coordinate(path: Path) -> Coordinate:
    group, artifact, version, name = path.parts
    stem, _, ext = name.partition(".")
    return Coordinate(group, artifact, version, stem.removeprefix("file").removeprefix("-"), ext)
