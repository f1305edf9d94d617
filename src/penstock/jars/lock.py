"""The lock file: which jars, from where, with which checksum.

Rules
- A coordinate is `group:artifact:version[:classifier][@ext]`; `ext` is `jar` unless it is written.
- A jar belongs to one or more groups; `engine` is Spark's class path, `broker` that of the embedded Kafka,
  `registry` the archive of the embedded schema registry.
- `roots` is what a person edits; `jars` is what `python -m penstock.jars lock` computes from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

Group = Literal["engine", "broker", "registry"]
GROUPS: tuple[Group, ...] = ("engine", "broker", "registry")

_COORDINATE = re.compile(
    r"(?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.-]+)(:(?P<classifier>[\w.-]+))?(@(?P<ext>[\w.]+))?"
)


@dataclass(frozen=True, order=True)
class Coordinate:
    """The name of one file in a Maven repository."""

    group: str
    artifact: str
    version: str
    classifier: str = ""
    ext: str = "jar"

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        found = _COORDINATE.fullmatch(text)
        if found is None:
            raise ValueError(f"'{text}' is no coordinate: group:artifact:version[:classifier][@ext]")
        return cls(
            found["group"], found["artifact"], found["version"], found["classifier"] or "", found["ext"] or "jar"
        )

    @property
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.{self.ext}"

    def __str__(self) -> str:
        classifier = f":{self.classifier}" if self.classifier else ""
        ext = f"@{self.ext}" if self.ext != "jar" else ""
        return f"{self.group}:{self.artifact}:{self.version}{classifier}{ext}"


@dataclass(frozen=True)
class Jar:
    """One line of the lock."""

    coordinate: Coordinate
    sha256: str
    size: int
    groups: tuple[str, ...]

    @property
    def path(self) -> str:
        """Where the file lives below the cache directory. The group is part of it: two groups may share a file name."""
        return f"{self.coordinate.group}/{self.coordinate.file_name}"


@dataclass(frozen=True)
class Root:
    """What a group starts from. `transitive` follows the POMs; otherwise the list is complete as it is."""

    transitive: bool
    coordinates: tuple[Coordinate, ...]


@dataclass(frozen=True)
class Lock:
    roots: Mapping[str, Root]
    jars: tuple[Jar, ...]

    def group(self, name: str) -> list[Jar]:
        return [jar for jar in self.jars if name in jar.groups]


def parse_lock(text: str) -> Lock:
    raw: dict[str, Any] = json.loads(text)
    roots = {
        name: Root(bool(root["transitive"]), tuple(Coordinate.parse(c) for c in root["coordinates"]))
        for name, root in raw["roots"].items()
    }
    jars = tuple(
        Jar(Coordinate.parse(jar["coordinate"]), jar["sha256"], int(jar["size"]), tuple(jar["groups"]))
        for jar in raw["jars"]
    )
    return Lock(roots, jars)


def render_lock(lock: Lock) -> str:
    """The lock as text: sorted, one jar a line, so that a change reads well in a diff."""
    roots = {
        name: {"transitive": root.transitive, "coordinates": [str(c) for c in root.coordinates]}
        for name, root in lock.roots.items()
    }
    lines = [
        "    "
        + json.dumps(
            {
                "coordinate": str(jar.coordinate),
                "groups": sorted(jar.groups),
                "size": jar.size,
                "sha256": jar.sha256,
            }
        )
        for jar in sorted(lock.jars, key=lambda jar: jar.coordinate)
    ]
    body = ",\n".join(lines)
    head = json.dumps(roots, indent=2).replace("\n", "\n  ")
    return f'{{\n  "roots": {head},\n  "jars": [\n{body}\n  ]\n}}\n'


def lock_path() -> Path:
    return Path(str(resources.files("penstock.jars") / "jars.lock"))


@lru_cache(maxsize=1)
def load_lock() -> Lock:
    """The lock that this version of Penstock ships."""
    return parse_lock(lock_path().read_text(encoding="utf-8"))
