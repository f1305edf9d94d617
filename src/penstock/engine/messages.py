"""Decoding keys and values that have a schema, with what the registry knows when a stream starts.

Rules
- Known are all versions of the source's subjects, and every id that was met in its messages before: schemas are kept
  below `.penstock/registry`, so a registry that does not answer keeps no stream from starting that ran before.
- An id that is not known ends the batch. It is written down, looked up when the stream starts again, and the batch
  comes again: nothing is lost or doubled. An id that the registry does not know either is unreadable.
- A struct `message` (or `message_key`) is added to the records, null where nothing could be decoded, and for values
  `message_record`, the full name of their type. Messages of types that are not read are taken out.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.compiler.avro import RAW, AvroDecoding, ReadType, Writer, Written, own_fields, unknown_ids
from penstock.compiler.messages import Messages
from penstock.compiler.origins import RECORD, struct_of
from penstock.engine import topic_files
from penstock.engine.functions import publish
from penstock.engine.protobuf import RECORD as RECORD_FIELD
from penstock.engine.protobuf import ProtobufDecoding
from penstock.errors import PenstockError
from penstock.kafka.security import Value, values_of
from penstock.paths import ProjectPaths
from penstock.project.avro import AvroSchema, SchemaError, fitted
from penstock.project.protobuf import ProtobufSchema, pruned
from penstock.project.protoc import ProtoError, compiled
from penstock.project.schemas import short_name
from penstock.project.sparktypes import quoted, struct
from penstock.registry.address import Access, access
from penstock.registry.cache import SchemaCache
from penstock.registry.client import Registered, Registry

log = logging.getLogger(__name__)

REGISTRY_CONF = "spark.penstock.registry.options"  # JSON: the profile's registry, with references in place of secrets
PROJECT_CONF = "spark.penstock.project"


@dataclass(frozen=True)
class Known:
    """The schemas of a source's messages, by id."""

    registry: str  # its name in the cache
    schemas: Mapping[int, Registered]
    own: frozenset[int]  # of the source's subjects
    unreadable: frozenset[int]


def decoded(
    spark: SparkSession,
    records: DataFrame,
    source: str,
    wanted: Sequence[Messages],
    registry: Mapping[str, str | Mapping[str, str]] | None = None,
    *,
    strict: bool = True,
) -> DataFrame:
    """The records with their decoded keys and values; unless `strict`, an id that is not known is null."""
    for each in wanted:
        known = _known(spark, source, each, values_of(registry or {})) if each.subjects else None
        decode = _avro if each.format == "avro" else _protobuf
        records = decode(spark, records, source, each, known, strict=strict)
    return records


def decoded_sql(
    spark: SparkSession,
    records: str,
    source: str,
    wanted: Sequence[Messages],
    registry: Mapping[str, str | Mapping[str, str]] | None = None,
) -> str:
    """The same as SQL over a relation, for a view. An id that is not known yet is null."""
    for each in wanted:
        known = _known(spark, source, each, values_of(registry or {})) if each.subjects else None
        if each.format == "protobuf":
            records = _protobuf_sql(spark, records, source, each, known)
            continue
        decoding = avro_decoding(source, each, known, strict=False)
        raw = f"{RAW}_{each.part}"
        record = f", {decoding.record()} as {RECORD}" if each.record else ""
        condition = decoding.is_read()
        where = f" where {condition}" if condition is not None else ""
        inner = f"select *, {decoding.raw()} as {raw}{record} from {records}{where}"
        records = f"(select *, {decoding.message(raw)} as {struct_of(each.part)} from ({inner}))"
    return records


def note_unknown(spark: SparkSession, failure: str) -> list[int]:
    """The ids that a batch failed for, written down to be looked up; none if that is not why, or was tried before."""
    noted = []
    for place, part, schema_id in unknown_ids(failure):
        registry, _, source = place.partition("/")
        cache = SchemaCache(_project(spark), registry)
        if schema_id not in cache.met(f"{source}.{part}"):
            cache.meet(f"{source}.{part}", {schema_id: None})
            noted.append(schema_id)
    return noted


# -- what the registry knows ------------------------------------------------------------------------------------------
def _known(spark: SparkSession, source: str, wanted: Messages, own: Mapping[str, Value]) -> Known:
    paths, profile = _project(spark), _profile(spark)
    place = access(own, profile, paths, asked=False)
    cache, key = SchemaCache(paths, place.name), f"{source}.{wanted.part}"
    met = cache.met(key)
    subjects = {subject: cache.versions(subject) for subject in wanted.subjects}
    try:
        if topic_files.home(spark) is None:  # a test has its schemas in the cache, and no registry
            place = access(own, profile, paths)
            _ask(Registry(place.url, place.options), cache, subjects, met)
            cache.meet(key, met)
    except PenstockError as problem:
        if None in met.values() or not any(subjects.values()):
            raise
        log.warning("%s: the schemas that are known will do for now: %s", source, problem)
    ids = {schema_id for versions in subjects.values() for schema_id in versions.values()}
    schemas = {schema_id: cache.find(schema_id) for schema_id in (*ids, *(each for each in met if met[each]))}
    return Known(
        place.name,
        {schema_id: schema for schema_id, schema in schemas.items() if schema is not None},
        frozenset(ids),
        frozenset(schema_id for schema_id, is_known in met.items() if is_known is False),
    )


def registry_access(spark: SparkSession) -> Access:
    """The registry of the profile."""
    return access({}, _profile(spark), _project(spark))


def _ask(
    registry: Registry, cache: SchemaCache, subjects: dict[str, dict[int, int]], met: dict[int, bool | None]
) -> None:
    """Complete what is known of the subjects and of the ids that were met."""
    for subject, versions in subjects.items():
        for number in registry.versions(subject):
            if number not in versions:
                found = registry.version(subject, number)
                cache.keep(found)
                versions[number] = found.id
        cache.keep_versions(subject, versions)
    for schema_id in [each for each, is_known in met.items() if not is_known]:
        answer = registry.by_id(schema_id)
        if answer is not None:
            cache.keep(answer)
        met[schema_id] = answer is not None


def _project(spark: SparkSession) -> ProjectPaths:
    return ProjectPaths(Path(spark.conf.get(PROJECT_CONF, str(Path.cwd())) or ".").absolute())


def _profile(spark: SparkSession) -> dict[str, Value]:
    return values_of(json.loads(spark.conf.get(REGISTRY_CONF, None) or "{}"))


def _place(source: str, known: Known | None) -> str:
    """What a mark of an unknown id says: where its schema is looked up, and for whom."""
    return source if known is None else f"{known.registry}/{source}"


# -- Avro -------------------------------------------------------------------------------------------------------------
def _avro(
    spark: SparkSession, records: DataFrame, source: str, wanted: Messages, known: Known | None, *, strict: bool
) -> DataFrame:
    decoding = avro_decoding(source, wanted, known, strict=strict)
    condition = decoding.is_read()
    if condition is not None:
        records = records.where(condition)
    if wanted.record:
        records = records.withColumn(RECORD, F.expr(decoding.record()))
    raw = f"{RAW}_{wanted.part}"
    records = records.withColumn(raw, F.expr(decoding.raw()))
    return records.withColumn(struct_of(wanted.part), F.expr(decoding.message(raw))).drop(raw)


def avro_decoding(source: str, wanted: Messages, known: Known | None, *, strict: bool = True) -> AvroDecoding:
    """How the messages are decoded, by all that is known of them."""
    readers = {name: AvroSchema.read(text) for name, text in wanted.types.items()}
    writers: list[Writer] = []
    others: list[Written] = []
    unreadable = set(known.unreadable) if known is not None else set()
    written: list[tuple[int | None, AvroSchema, bool]] = []
    if known is None:
        written.append((None, AvroSchema.read(str(wanted.written)), True))
    else:
        for schema_id, found in sorted(known.schemas.items()):
            try:
                written.append((schema_id, AvroSchema.read(found.text, found.files), schema_id in known.own))
            except SchemaError as problem:
                log.warning("%s: schema %s cannot be read: %s", source, schema_id, problem)
                unreadable.add(schema_id)
    for number, schema, own in written:
        for branch, node in schema.branches():
            record = str(node["name"]) if node["type"] == "record" else None
            of = Written(number, branch, record)
            name = _read_as(record, readers, sole=own and len(schema.records) < 2)
            if name is None:
                if record is not None:
                    others.append(of)
            elif (fit := fitted(readers[name], schema, branch)) is not None:
                writers.append(Writer(of, name, fit.writer, fit.reader))
        if number is not None:
            unreadable.add(number)  # as far as it is none of the above
    return AvroDecoding(
        source=_place(source, known),
        part=wanted.part,
        framed=wanted.framed,
        types=tuple(_read_type(name, schema, several=len(readers) > 1) for name, schema in readers.items()),
        writers=tuple(writers),
        others=tuple(others),
        unreadable=tuple(sorted(unreadable)),
        strict=strict,
        whole=wanted.whole,
    )


def _read_as(record: str | None, readers: Mapping[str, AvroSchema], *, sole: bool) -> str | None:
    """The type that a record is read as: that of its name, or the only one if the schema is the source's own."""
    for name in readers:
        aliases = readers[name].named.get(name, {}).get("aliases", ())
        if record is not None and (record in (name, *aliases) or short_name(record) == short_name(name)):
            return name
    return next(iter(readers)) if sole and len(readers) == 1 else None


def _read_type(name: str, schema: AvroSchema, *, several: bool) -> ReadType:
    if not name:
        return ReadType(name, None, (), schema.type(None).ddl)
    fields, _ = schema.fields(name)
    return ReadType(name, short_name(name) if several else None, tuple((each, kind.ddl) for each, kind in fields))


# -- Protobuf ---------------------------------------------------------------------------------------------------------
def _protobuf(
    spark: SparkSession, records: DataFrame, source: str, wanted: Messages, known: Known | None, *, strict: bool
) -> DataFrame:
    decoding = _protobuf_decoding(source, wanted, known, strict=strict)
    raw = f"{RAW}_{wanted.part}"
    records = records.withColumn(raw, _protobuf_function(decoding, wanted)(F.col(wanted.part)))
    if (condition := _is_read(raw, wanted, decoding)) is not None:
        records = records.where(condition)
    if wanted.record:
        records = records.withColumn(RECORD, F.col(f"{raw}.{RECORD_FIELD}"))
    return records.withColumn(struct_of(wanted.part), F.expr(_own_message(raw, wanted))).drop(raw)


def _protobuf_sql(spark: SparkSession, records: str, source: str, wanted: Messages, known: Known | None) -> str:
    decoding = _protobuf_decoding(source, wanted, known, strict=False)
    name = f"penstock_protobuf_{_digest(decoding)}"
    publish(spark, name, _protobuf_function(decoding, wanted))
    raw = f"{RAW}_{wanted.part}"
    record = f", {raw}.{RECORD_FIELD} as {RECORD}" if wanted.record else ""
    condition = _is_read(raw, wanted, decoding)
    inner = f"select *, {name}({quoted(wanted.part)}) as {raw} from {records}"
    where = f" where {condition}" if condition is not None else ""
    return f"(select *, {_own_message(raw, wanted)} as {struct_of(wanted.part)}{record} from ({inner}){where})"


def _digest(decoding: ProtobufDecoding) -> str:
    """Equal for what decodes alike."""
    written = {number: sorted(places.items()) for number, places in (decoding.written or {}).items()}
    parts = (decoding.part, decoding.framed, decoding.types, decoding.names, decoding.written is None,
             sorted(written.items()), sorted(decoding.unreadable), decoding.strict)  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _protobuf_decoding(source: str, wanted: Messages, known: Known | None, *, strict: bool) -> ProtobufDecoding:
    several = len(wanted.types) > 1
    return ProtobufDecoding(
        source=_place(source, known),
        part=wanted.part,
        framed=wanted.framed,
        types=tuple((name, content, _paths(wanted.fields[name])) for name, content in wanted.types.items()),
        names=tuple(short_name(name) if several else None for name in wanted.types),
        written=None if known is None else _places(source, known),
        unreadable=frozenset() if known is None else known.unreadable,
        strict=strict,
    )


def _protobuf_function(decoding: ProtobufDecoding, wanted: Messages) -> Any:
    def decode(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return decoding.batches(values)

    # Not deterministic for Spark, which would otherwise copy it into a filter and decode twice.
    return F.arrow_udf(decode, _ddl([*_fields(wanted), (RECORD_FIELD, "STRING")])).asNondeterministic()


def _is_read(raw: str, wanted: Messages, decoding: ProtobufDecoding) -> str | None:
    """The condition that a message is not of a type that the source does not read; None if all are."""
    if not wanted.framed:
        return None
    read = ", ".join(f"'{name}'" for name in _names_read(wanted, decoding))
    return f"{raw}.{RECORD_FIELD} is null or {raw}.{RECORD_FIELD} in ({read})"


def _own_message(raw: str, wanted: Messages) -> str:
    return own_fields(raw, f"{raw} is not null", [name for name, _ in _fields(wanted)]) if wanted.whole else raw


def _ddl(fields: Sequence[tuple[str, str]]) -> str:
    return f"STRUCT<{', '.join(f'{quoted(name)}: {ddl}' for name, ddl in fields)}>"


def _fields(wanted: Messages) -> list[tuple[str, str]]:
    """The fields of the struct: those of the only type, or a struct of each."""
    types = {
        name: pruned(ProtobufSchema.read(content).message(name), _paths(wanted.fields[name]))
        for name, content in wanted.types.items()
    }
    if len(types) == 1:
        return [(name, kind.ddl) for name, kind in next(iter(types.values()))]
    return [(short_name(name), struct(tuple(each)).ddl) for name, each in types.items() if each]


def _names_read(wanted: Messages, decoding: ProtobufDecoding) -> list[str]:
    """The full names of what is read; a message may have moved to another package."""
    written = {name for places in (decoding.written or {}).values() for name in places.values()}
    short = {short_name(name) for name in wanted.types}
    return sorted({*wanted.types, *(name for name in written if short_name(name) in short)})


def _places(source: str, known: Known) -> dict[int, dict[tuple[int, ...], str]]:
    found: dict[int, dict[tuple[int, ...], str]] = {}
    for schema_id, schema in known.schemas.items():
        try:
            compiled_schema = compiled(schema.text, f"{schema_id}.proto", schema.files)
            found[schema_id] = ProtobufSchema.read(compiled_schema.encoded).places()
        except ProtoError as problem:
            log.warning("%s: schema %s cannot be read: %s", source, schema_id, problem)
            found[schema_id] = {}
    return found


def _paths(dotted: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(each.split(".")) if each else () for each in dotted)
