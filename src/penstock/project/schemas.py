"""The schemas of a source's keys and values: from texts to types of messages.

Rules
- A text of Avro or Protobuf, with what it refers to, gives the types of messages that a source reads: those it names,
  or the only one there is. A name may leave out its package or namespace where that is clear.
- A schema of the registry is read from the lock file and from nowhere else; one of the source itself or of a file is
  read as it stands, so that the project alone says what it means.
- The same text gives the same types, on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from penstock.errors import Kind, Location, PenstockError, did_you_mean
from penstock.errors.catalogue import (
    RECORD_UNKNOWN,
    SCHEMA_CHOICE,
    SCHEMA_FILE_MISSING,
    SCHEMA_INVALID,
    SCHEMA_TYPE,
    SCHEMA_UNLOCKED,
)
from penstock.project.avro import AvroSchema, NoTypeError, SchemaError
from penstock.project.formats import SchemaFormat
from penstock.project.lockfile import Lock, LockedPart, LockedType
from penstock.project.protobuf import ProtobufSchema
from penstock.project.protoc import Compiled, ProtoError, compiled
from penstock.project.sparktypes import SparkType, parse_type, struct

_IMPORT = re.compile(r'\bimport\s+(?:public\s+|weak\s+)?"([^"]+)"\s*;')
_SUFFIX = {"avro": ".avsc", "protobuf": ".proto"}


@dataclass(frozen=True)
class MessageType:
    """One type of messages."""

    name: str | None  # with package or namespace; None: a simple type of Avro
    type: SparkType
    content: str  # Avro: the schema; Protobuf: its descriptors, base64


@dataclass(frozen=True)
class PartSchema:
    """The schema of a source's keys or values."""

    framed: bool  # by Confluent's wire format
    subjects: tuple[str, ...]  # of the registry; none without
    types: tuple[MessageType, ...]

    @property
    def several(self) -> bool:
        """Whether each type is a struct column of its own."""
        return len(self.types) > 1

    @property
    def type(self) -> SparkType:
        if not self.several:
            return self.types[0].type
        return struct(tuple((short_name(str(each.name)), each.type) for each in self.types))


@dataclass(frozen=True)
class SchemaText:
    """A schema as it was found, and where."""

    text: str
    files: Mapping[str, str] = field(default_factory=dict)  # what it refers to, by name
    name: str = "schema"  # of the text among the files
    subject: str | None = None
    version: int | None = None
    id: int | None = None
    file: str | None = None


def part_schema(
    settings: SchemaFormat, part: str, source: str, topic: str | None, lock: Lock, project: Path, at: Location
) -> PartSchema:
    """The schema of a source's key or value, without asking anybody. Raises what is wrong, at that place."""
    if settings.from_registry:
        subject_of(settings, part, topic, settings.wanted[0] if settings.wanted else None, at)
        locked = lock.find(source, part)
        if locked is None or not fits(locked, settings, part, topic, at):
            raise SCHEMA_UNLOCKED.error(f"the schema of {source}'s {part}s is not in the lock file.", at=at)
        types = locked.types
    else:
        types = tuple(described(own_text(settings, project, at), settings, at))
    return PartSchema(
        framed=settings.framed,
        subjects=tuple(dict.fromkeys(each.subject for each in types if each.subject is not None)),
        types=tuple(MessageType(each.name, _column_type(each), each.descriptor or each.text) for each in types),
    )


def fits(locked: LockedPart, settings: SchemaFormat, part: str, topic: str | None, at: Location) -> bool:
    """Whether an entry of the lock file is of what the source says now."""
    if locked.format != settings.format:
        return False
    if not settings.wanted:
        return {each.subject for each in locked.types} == {subject_of(settings, part, topic, None, at)}
    return len(locked.types) == len(settings.wanted) and all(
        each.name is not None and names(each.name, wanted) and each.subject in
        {subject_of(settings, part, topic, name, at) for name in (each.name, wanted)}
        for each, wanted in zip(locked.types, settings.wanted, strict=True)
    )  # fmt: skip


def subject_of(settings: SchemaFormat, part: str, topic: str | None, record: str | None, at: Location) -> str:
    """The subject that a type of messages is registered under."""
    pattern = settings.subject if settings.subject is not None else f"{{topic}}-{part}"
    if "{topic}" in pattern and topic is None:
        raise SCHEMA_CHOICE.error(
            f"a source with 'topic_pattern' has no one topic, so its {part}s need a subject.", at=at,
            hint=f"Set '{part}.subject', or give 'schema' or 'schema_file'.",
        )  # fmt: skip
    if "{record}" in pattern and record is None:
        raise SCHEMA_CHOICE.error(
            f"'{pattern}' needs the name of a record.", at=at,
            hint=f"Set '{part}.{'message' if settings.format == 'protobuf' else 'record'}'.",
        )  # fmt: skip
    return pattern.replace("{topic}", str(topic)).replace("{record}", str(record))


def own_text(settings: SchemaFormat, project: Path, at: Location) -> SchemaText:
    """The schema that stands in the source or in a file of the project."""
    if settings.inline is not None:
        return SchemaText(settings.inline, name=f"schema{_SUFFIX[settings.format]}")
    name = str(settings.schema_file)
    file = project / name
    text = _read(file, name, at)
    files: dict[str, str] = {}
    if settings.format == "protobuf":
        _imported(text, file, project, files)
    return SchemaText(text, files, name=file.name, file=name)


def described(found: SchemaText, settings: SchemaFormat, at: Location) -> Sequence[LockedType]:
    """The types of messages that the source reads, as the lock file has them."""
    describe = _avro if settings.format == "avro" else _protobuf
    return describe(found, settings.wanted, at)


def names(full: str, wanted: str) -> bool:
    """Whether a name, with or without its package, is that of a type."""
    return full == wanted or full.endswith(f".{wanted}")


def short_name(full: str) -> str:
    return full.rpartition(".")[2]


# -- Avro -------------------------------------------------------------------------------------------------------------
def _avro(found: SchemaText, wanted: Sequence[str], at: Location) -> list[LockedType]:
    try:
        schema = AvroSchema.read(found.text, found.files)
    except SchemaError as problem:
        raise _invalid(found, str(problem), None, at) from None
    known = schema.records
    if not known:
        if wanted:
            raise RECORD_UNKNOWN.error("the schema has no record, but a simple type.", at=at, hint="Remove 'record'.")
        try:
            kind = schema.type(None)
        except NoTypeError as problem:
            raise SCHEMA_TYPE.error(f"the schema cannot be read into a column: {problem}.", at=at) from None
        return [_locked(found, None, {"": kind.ddl}, {}, schema.fingerprint, schema.text)]
    chosen = _chosen(known, wanted, known, "record", at) if wanted else known
    made = []
    for name in chosen:
        fields, left_out = schema.fields(name)
        columns = {field: kind.ddl for field, kind in fields}
        made.append(_locked(found, name, columns, left_out, schema.fingerprint, schema.text))
    return made


# -- Protobuf ---------------------------------------------------------------------------------------------------------
def _protobuf(found: SchemaText, wanted: Sequence[str], at: Location) -> list[LockedType]:
    try:
        encoded = _compiled(found.text, found.name, tuple(found.files.items())).encoded
    except ProtoError as problem:
        raise _invalid(found, problem.reason, problem.line, at) from None
    schema = ProtobufSchema.read(encoded)
    chosen = _chosen(schema.messages, wanted, schema.outermost, "message", at)
    made = []
    for name in chosen:
        fields, left_out = schema.fields(name)
        columns = {field: kind.ddl for field, kind in fields}
        if not columns:
            raise SCHEMA_TYPE.error(f"message {name} has no field that can be a column.", at=at)
        text = found.text if schema.files[-1].name == found.name and "{" in found.text else ""
        made.append(_locked(found, name, columns, left_out, schema.fingerprint, text, encoded))
    return made


@lru_cache(maxsize=64)
def _compiled(text: str, name: str, files: tuple[tuple[str, str], ...]) -> Compiled:
    return compiled(text, name, dict(files))


def _imported(text: str, file: Path, project: Path, files: dict[str, str]) -> None:
    """The files of the project that a .proto text imports, each by the name it is imported by."""
    for name in _IMPORT.findall(text):
        if name in files:
            continue
        folders = [file.parent, *(above for above in file.parent.parents if above.is_relative_to(project))]
        place = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if place is not None:  # others are Google's, or the compiler says that they are not there
            files[name] = place.read_text(encoding="utf-8")
            _imported(files[name], file, project, files)


# -- both -------------------------------------------------------------------------------------------------------------
def _chosen(known: Sequence[str], wanted: Sequence[str], default: Sequence[str], word: str, at: Location) -> list[str]:
    if not wanted:
        if len(default) == 1:
            return list(default)
        raise RECORD_UNKNOWN.error(
            f"the schema has {len(default)} {word}s, and the source names none." if default
            else f"the schema has no {word}.", at=at, hint=f"Set '{word}' to one of: {', '.join(known)}.",
        )  # fmt: skip
    chosen = []
    for name in wanted:
        found = [each for each in known if each == name] or [each for each in known if names(each, name)]
        if len(found) != 1:
            what = f"the schema has no {word} '{name}'." if not found else f"{word} '{name}' is not clear."
            hint = f"Use one of: {', '.join(found)}." if found else _nearest(name, known)
            raise RECORD_UNKNOWN.error(what, at=at, hint=hint)
        chosen.append(found[0])
    return chosen


def _nearest(name: str, known: Sequence[str]) -> str:
    short = {short_name(each): each for each in known}
    hint = did_you_mean(short_name(name), short)
    for word, full in short.items():
        hint = hint.replace(f"'{word}'", f"'{full}'")
    return hint if hint.startswith("Did") else did_you_mean(name, known)


def _locked(
    found: SchemaText, name: str | None, columns: Mapping[str, str], left_out: Mapping[str, str], fingerprint: str,
    text: str, descriptor: str | None = None,
) -> LockedType:  # fmt: skip
    return LockedType(
        name=name,
        subject=found.subject,
        version=found.version,
        id=found.id,
        file=found.file,
        fingerprint=f"sha256:{fingerprint}",
        columns=dict(columns),
        left_out=dict(left_out),
        schema=_tidy(text),
        imports=dict(found.files) if descriptor is not None and text else {},
        descriptor=descriptor,
    )


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _column_type(locked: LockedType) -> SparkType:
    if locked.name is None:
        return parse_type(locked.columns[""])
    return struct(tuple((name, parse_type(kind)) for name, kind in locked.columns.items()))


def _read(file: Path, shown: str, at: Location) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as problem:
        reason = (problem.strerror or "it cannot be read").lower()
        raise SCHEMA_FILE_MISSING.error(f"'schema_file' {shown} cannot be read: {reason}.", at=at) from None
    except UnicodeDecodeError:
        raise SCHEMA_FILE_MISSING.error(f"'schema_file' {shown} is not text.", at=at) from None


def _invalid(found: SchemaText, reason: str, line: int | None, at: Location) -> PenstockError:
    kind: Kind = SCHEMA_INVALID
    if found.file is not None:
        return kind.error(f"the schema cannot be read: {reason}.", at=Location(found.file, line))
    if found.subject is not None:
        return kind.error(f"the schema of subject '{found.subject}' cannot be read: {reason}.", at=at)
    inside = f" in its line {line}" if line is not None else ""
    return kind.error(f"the schema cannot be read{inside}: {reason}.", at=at)
