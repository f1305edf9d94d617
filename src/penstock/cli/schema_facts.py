"""What `penstock describe` says of a source's schemas: as they are pinned, and as the registry has them now.

Rules
- What is pinned is told whatever runs; what the registry says is added when it answers, and when it does not, the
  source's `last_error` says why, unless there is one already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.paths import ProjectPaths
    from penstock.project.formats import FormatSettings
    from penstock.project.profile import RuntimeSettings
    from penstock.project.source import StreamSource

Facts = dict[str, Any]


def settings_of(part: FormatSettings) -> Facts:
    """A format with what is set of it; of a schema that stands in the source, that it does."""
    from penstock.project.formats import SchemaFormat

    if not isinstance(part, SchemaFormat):
        return part.model_dump()
    found = part.model_dump(exclude_none=True, by_alias=True, mode="json")
    return found | ({"schema": "in the source"} if "schema" in found else {})


def pinned(source: StreamSource, name: str, paths: ProjectPaths) -> list[Facts]:
    """The types of messages, each with the schema that penstock.lock pins; `name` is the source's in the lock file."""
    from penstock.project.lockfile import read_lock

    lock = read_lock(paths.project)
    found = []
    for part, schema in (("key", source.key_schema), ("value", source.value_schema)):
        locked = lock.find(name, part)
        entries = {each.name: each for each in locked.types} if locked is not None else {}
        for each in schema.types if schema is not None else ():
            entry = entries.get(each.name)
            found.append({
                "part": part,
                "type": each.name,
                "subject": entry.subject if entry else None,
                "file": entry.file if entry else None,
                "version": entry.version if entry else None,
                "id": entry.id if entry else None,
                "fingerprint": entry.fingerprint if entry else None,
                "left_out": dict(entry.left_out) if entry else {},
                "in_registry": None,
            })  # fmt: skip
    return found


def with_registry(
    facts: Mapping[str, Any], source: StreamSource, settings: Callable[[], RuntimeSettings], paths: ProjectPaths
) -> tuple[Facts, PenstockError | None]:
    """The facts with the registry's versions and ids, and the ids that streams met in the messages."""
    if not any(each["subject"] for each in facts["schemas"]):
        return dict(facts), None
    from penstock.registry.address import access
    from penstock.registry.cache import SchemaCache
    from penstock.registry.client import Registry

    try:
        place = access(dict(source.registry), settings().schema_registry.options, paths)
        registry = Registry(place.url, place.options)
        cache = SchemaCache(paths, place.name)
        subjects = {each["subject"] for each in facts["schemas"] if each["subject"]}
        versions = {subject: _versions(registry, subject) for subject in sorted(subjects)}
        schemas = [{**each, "in_registry": versions.get(each["subject"])} for each in facts["schemas"]]
        met = {part: sorted(cache.met(f"{source.relation}.{part}")) for part in ("key", "value")}
        return {**facts, "schema_registry": place.url, "schemas": schemas, "ids_met": met}, None
    except PenstockError as problem:
        return {**facts, "last_error": facts["last_error"] or problem.as_dict()}, problem


def _versions(registry: Any, subject: str) -> list[Facts]:
    return [{"version": number, "id": registry.version(subject, number).id} for number in registry.versions(subject)]


def rows(schemas: list[Facts]) -> list[tuple[str, str, str, str, str]]:
    """Part, type, where from, what is pinned, and what the registry has, as words."""
    return [
        (
            each["part"],
            each["type"] or "a simple type",
            each["subject"] or each["file"] or "the source itself",
            f"version {each['version']} (id {each['id']})" if each["subject"] else "-",
            ", ".join(f"version {one['version']} (id {one['id']})" for one in each["in_registry"] or ()) or "-",
        )
        for each in schemas
    ]
