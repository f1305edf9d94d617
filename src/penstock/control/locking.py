"""Keeping penstock.lock: schemas from the registry and from files, pinned.

Rules
- What is pinned stays as it is until it is asked for: `completed` adds what is missing, and what a source says anew;
  `update` takes the registry's latest.
- Sources that are gone, or have no schema any more, are taken out.
- Of a subject the latest version is taken that has the wanted record; of several types each has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import DEPLOY_BUSY, RECORD_UNKNOWN, SCHEMA_CHOICE
from penstock.jars.guard import exclusive
from penstock.kafka.security import Value
from penstock.paths import ProjectPaths
from penstock.project.formats import SchemaFormat
from penstock.project.lockfile import Lock, LockedPart, LockedType, read_lock, write_lock
from penstock.project.schemas import SchemaText, described, fits, own_text, subject_of
from penstock.project.source import SchemaSettings, is_stream, read_schema_settings
from penstock.registry.address import access
from penstock.registry.client import Registered, Registry

_PATIENCE = 60.0
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF"}


@dataclass(frozen=True)
class Change:
    """What an update of the lock file does to a source's key or value."""

    source: str
    part: str
    what: str  # new | changed | removed
    before: LockedPart | None = None
    after: LockedPart | None = None


@dataclass(frozen=True)
class Locking:
    """The lock file as it is and as it should be."""

    before: Lock
    after: Lock
    changes: tuple[Change, ...]


class Locker:
    """Makes the lock of a project's sources; asks each registry once for what it needs."""

    def __init__(self, project: Path, profile: Mapping[str, Value]) -> None:
        self._paths = ProjectPaths(project)
        self._profile = profile
        self._registries: dict[str, Registry] = {}

    def locking(self, sources: Iterable[Mapping[str, Any]], *, update: bool, whole: bool = True) -> Locking:
        """What the lock should be. `whole`: these are all sources of the project, and others are taken out."""
        before = read_lock(self._paths.project)
        after = Lock(version=before.version, sources={} if whole else dict(before.sources))
        changes: list[Change] = []
        for source in sources:
            if not is_stream(source):
                continue
            settings = read_schema_settings(source, self._paths.project)
            parts: dict[str, LockedPart] = {}
            for part, each in settings.parts.items():
                known = before.find(settings.name, part)
                found = parts[part] = self._part(settings, part, each, known, update=update)
                if known is None or not known.same(found):
                    changes.append(Change(settings.name, part, "new" if known is None else "changed", known, found))
                else:
                    parts[part] = known  # ids and versions of another registry are no change
            after = after.having(settings.name, parts)
        changes += [
            Change(name, part, "removed", before=locked)
            for name, known in before.sources.items()
            for part, locked in known.items()
            if after.find(name, part) is None
        ]
        return Locking(before, after, tuple(changes))

    def _part(
        self, settings: SchemaSettings, part: str, each: SchemaFormat, known: LockedPart | None, *, update: bool
    ) -> LockedPart:
        at = settings.at(part)
        if not each.from_registry:
            types = described(own_text(each, self._paths.project, at), each, at)
            return LockedPart(format=each.format, types=tuple(types))
        if known is not None and not update and fits(known, each, part, settings.topic, at):
            return known
        return LockedPart(format=each.format, types=tuple(self._from_registry(settings, part, each, at)))

    def _from_registry(
        self, settings: SchemaSettings, part: str, each: SchemaFormat, at: Location
    ) -> Iterable[LockedType]:
        registry = self._registry(settings.registry)
        try:
            if not each.wanted:
                latest = registry.latest(subject_of(each, part, settings.topic, None, at))
                return described(_text(latest, each, at), each, at)
            return [self._record(registry, settings, part, each, name, at) for name in each.wanted]
        except PenstockError as problem:
            raise (problem if problem.at is not None else _placed(problem, at)) from None

    def _record(
        self, registry: Registry, settings: SchemaSettings, part: str, each: SchemaFormat, name: str, at: Location
    ) -> LockedType:
        """The type of that name, in the latest version of its subject that has it."""
        subject = subject_of(each, part, settings.topic, name, at)
        word = "message" if each.format == "protobuf" else "record"
        one = each.model_copy(update={word: (name,)})
        problem: PenstockError | None = None
        for number in reversed(registry.versions(subject)):
            try:
                return described(_text(registry.version(subject, number), each, at), one, at)[0]
            except PenstockError as found:
                if found.kind is not RECORD_UNKNOWN:
                    raise
                problem = problem or found  # what the latest version says of it
        assert problem is not None  # a subject has a version
        raise problem

    def _registry(self, own: Mapping[str, Value]) -> Registry:
        found = access(own, self._profile, self._paths)
        key = f"{found.url} {sorted(found.options.items(), key=lambda each: each[0])}"
        if key not in self._registries:
            self._registries[key] = Registry(found.url, found.options)
        return self._registries[key]


def complete(
    sources: Iterable[Mapping[str, Any]], project: Path, profile: Callable[[], Mapping[str, Value]]
) -> tuple[Change, ...]:
    """Add to the lock file what these sources need and it does not have; what was changed.

    Without a source with a schema nothing is read or written, and without one of a registry nobody is asked. `profile`
    gives the profile's registry.
    """
    concerned = [each for each in sources if is_stream(each) and read_schema_settings(each, project).parts]
    if not concerned:
        return ()
    try:
        with exclusive(ProjectPaths(project).home / "lockfile.lock", _PATIENCE):  # dbt compiles models side by side
            found = Locker(project, profile()).locking(concerned, update=False, whole=False)
            if found.changes:
                write_lock(project, found.after)
    except TimeoutError:
        raise DEPLOY_BUSY.error("Another process has been writing penstock.lock all the time.") from None
    return found.changes


def _text(found: Registered, settings: SchemaFormat, at: Location) -> SchemaText:
    if found.kind != _KINDS[settings.format]:
        raise SCHEMA_CHOICE.error(
            f"subject '{found.subject}' holds a schema of {found.kind.capitalize()}, not of {settings.format}.", at=at,
            hint="Correct 'format' or 'subject'.",
        )  # fmt: skip
    name = f"{found.subject}.proto" if settings.format == "protobuf" else str(found.subject)
    return SchemaText(found.text, found.files, name, found.subject, found.version, found.id)


def _placed(problem: PenstockError, at: Location) -> PenstockError:
    return problem.kind.error(problem.message, at=at, hint=problem.hint)
