"""penstock.lock: the schemas that a project's sources are read with, pinned.

Rules
- The file is committed, and made to be read in a diff: sorted, a line a field, texts as they are.
- It says nothing of the machine and no secret: not where the registry is, and no time.
- A registry's ids and versions are there for people; what is compared is the schema, because another registry (that of
  production) numbers the same schemas otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.errors import Location
from penstock.errors.catalogue import LOCK_INVALID

FILE = "penstock.lock"
VERSION = 1

_HEAD = """\
# Written by 'penstock lock': the schemas that sources are read with. Commit it; a changed schema shows up as a diff.
# 'penstock lock --check' says whether the registry has newer ones, 'penstock lock --update' takes them.
"""
_WIDTH = 100  # of a line of base64


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LockedType(_Frozen):
    """One type of messages: where its schema is from, what it is, and the columns it gives."""

    name: str | None = None
    subject: str | None = None
    version: int | None = None
    id: int | None = None
    file: str | None = None
    fingerprint: str
    columns: dict[str, str]
    left_out: dict[str, str] = {}
    text: str = Field(default="", alias="schema")
    imports: dict[str, str] = {}
    descriptor: str | None = None

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=())

    def same(self, other: LockedType) -> bool:
        """Whether both are the same schema, whatever number a registry gave it."""
        return (self.name, self.subject, self.file, self.fingerprint, self.columns, self.text) == (
            other.name, other.subject, other.file, other.fingerprint, other.columns, other.text,
        )  # fmt: skip


class LockedPart(_Frozen):
    """The key or value of a source."""

    format: str
    types: tuple[LockedType, ...]

    def same(self, other: LockedPart) -> bool:
        return (
            self.format == other.format
            and len(self.types) == len(other.types)
            and all(one.same(two) for one, two in zip(self.types, other.types, strict=True))
        )


class Lock(_Frozen):
    """The whole file."""

    version: int = VERSION
    sources: dict[str, dict[str, LockedPart]] = {}

    def find(self, source: str, part: str) -> LockedPart | None:
        return self.sources.get(source, {}).get(part)

    def having(self, source: str, parts: dict[str, LockedPart]) -> Lock:
        """The lock with these parts of a source in place of those it has."""
        others = {name: each for name, each in self.sources.items() if name != source}
        return Lock(version=self.version, sources=others | ({source: parts} if parts else {}))


def read_lock(project: Path) -> Lock:
    """The project's lock file; an empty one if there is none."""
    file = project / FILE
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)
    except FileNotFoundError:
        return Lock()
    except (OSError, UnicodeDecodeError) as problem:
        raise LOCK_INVALID.error(f"it cannot be read: {problem}.", at=Location(FILE)) from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        raise LOCK_INVALID.error("it is not YAML.", at=Location(FILE, mark.line + 1 if mark else None)) from None
    if isinstance(content, dict) and isinstance(content.get("version"), int) and content["version"] > VERSION:
        raise LOCK_INVALID.error(
            "it was written by a newer version of Penstock.", at=Location(FILE), hint="Update Penstock."
        )
    try:
        return Lock.model_validate(_joined(content if content is not None else {}))
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise LOCK_INVALID.error(f"'{where}': {first['msg'].lower()}.", at=Location(FILE)) from None


def render_lock(lock: Lock) -> str:
    """The text of the file."""
    sources = {
        source: {part: _part(locked) for part, locked in sorted(parts.items())}
        for source, parts in sorted(lock.sources.items())
    }
    return _HEAD + yaml.dump(
        {"version": lock.version, "sources": sources}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096
    )


def write_lock(project: Path, lock: Lock) -> bool:
    """Write the file, whole or not at all; False if it says so already. One without sources is not written."""
    file = project / FILE
    text = render_lock(lock)
    try:
        if file.read_text(encoding="utf-8") == text:
            return False
    except FileNotFoundError:
        if not lock.sources:
            return False
    draft = file.with_name(f".{FILE}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
    return True


def _part(locked: LockedPart) -> dict[str, Any]:
    return {"format": locked.format, "types": [_type(each) for each in locked.types]}


def _type(locked: LockedType) -> dict[str, Any]:
    found = {name: value for name, value in locked.model_dump(by_alias=True).items() if value not in (None, {}, "")}
    if locked.descriptor is not None:
        lines = [locked.descriptor[at : at + _WIDTH] for at in range(0, len(locked.descriptor), _WIDTH)]
        found["descriptor"] = "\n".join(lines)
    return found


def _joined(content: Any) -> Any:
    """With descriptors in one line again."""
    if isinstance(content, dict):
        return {
            key: "".join(value.split()) if key == "descriptor" and isinstance(value, str) else _joined(value)
            for key, value in content.items()
        }
    return [_joined(each) for each in content] if isinstance(content, list) else content


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a diff shows their lines."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
