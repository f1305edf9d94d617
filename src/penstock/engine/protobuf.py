"""Protobuf messages as Arrow columns: what runs in Spark's Python workers.

Rules
- Columns are built straight from the parsed messages, a column at a time and only the wanted fields; no row objects.
- A message that cannot be parsed is null as a whole; its place in the columns is held by an empty message.
- The type of a framed message is told by the id and the indexes before it. An id that is not known ends the batch with
  its mark; a type that is not read is told by `RECORD` alone, with no field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from penstock.compiler.avro import mark
from penstock.project.avro import NoTypeError
from penstock.project.protobuf import JSON, TIMESTAMP, WRAPPERS, ProtobufSchema, field_type, is_map

RECORD = "penstock_record"  # the full name of what was written

Tree = dict[str, Any]  # wanted fields; a leaf is None: all of it
Build = Callable[[list[Any]], pa.Array]
_F = FieldDescriptor
_ARROW = {
    _F.TYPE_DOUBLE: pa.float64(), _F.TYPE_FLOAT: pa.float32(), _F.TYPE_BOOL: pa.bool_(), _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(), _F.TYPE_ENUM: pa.string(), _F.TYPE_INT32: pa.int32(), _F.TYPE_SINT32: pa.int32(),
    _F.TYPE_SFIXED32: pa.int32(), _F.TYPE_INT64: pa.int64(), _F.TYPE_SINT64: pa.int64(), _F.TYPE_SFIXED64: pa.int64(),
    _F.TYPE_UINT32: pa.int64(), _F.TYPE_FIXED32: pa.int64(), _F.TYPE_UINT64: pa.decimal128(20, 0),
    _F.TYPE_FIXED64: pa.decimal128(20, 0),
}  # fmt: skip
_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class ProtobufDecoding:
    """All that a worker needs to know of a source's keys or values."""

    source: str
    part: str
    framed: bool
    types: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...]  # name, descriptors (base64), wanted fields
    names: tuple[str | None, ...]  # the field of each type in the struct of several; None if it is the only one
    written: Mapping[int, Mapping[tuple[int, ...], str]] | None = None  # id -> indexes -> full name; None: any id
    unreadable: frozenset[int] = frozenset()
    strict: bool = True
    _prefixes: dict[bytes, tuple[int, int | None, str | None]] = field(default_factory=dict, compare=False)

    def batches(self, values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """The struct of each message of each batch."""
        readers = [_Reader(*each) for each in self.types]
        for batch in values:
            yield self._batch(batch.to_pylist(), readers)

    def _batch(self, values: list[bytes | None], readers: Sequence[_Reader]) -> pa.Array:
        if not self.framed and len(readers) == 1:
            messages, bad = readers[0].parsed(values)
            return self._struct([(readers[0], messages, bad)], bad, None)
        kinds: list[int | None] = []
        records: list[str | None] = []
        bodies: list[list[bytes | None]] = [[None] * len(values) for _ in readers]
        for place, value in enumerate(values):
            kind, start, record = self._kind(value)
            kinds.append(kind)
            records.append(record)
            if kind is not None and value is not None:
                bodies[kind][place] = value[start:]
        parsed = [(reader, *reader.parsed(body)) for reader, body in zip(readers, bodies, strict=True)]
        bad = [parsed[kind][2][place] if kind is not None else records[place] is None
               for place, kind in enumerate(kinds)]  # fmt: skip
        return self._struct(parsed, bad, records)

    def _struct(
        self, parsed: Sequence[tuple[_Reader, list[Any], list[bool]]], bad: list[bool], records: list[str | None] | None
    ) -> pa.Array:
        arrays: list[pa.Array] = []
        names: list[str] = []
        for (reader, messages, missing), name in zip(parsed, self.names, strict=True):
            columns = [(each, build(messages)) for each, build in reader.columns]
            if name is None:
                names += [each for each, _ in columns]
                arrays += [array for _, array in columns]
            elif columns:  # nothing is wanted of some types but that they are read
                names.append(name)
                inner = [array for _, array in columns]
                arrays.append(pa.StructArray.from_arrays(inner, [each for each, _ in columns], mask=pa.array(missing)))
        names.append(RECORD)
        if records is None:
            records = [self.types[0][0]] * len(bad)
        arrays.append(pa.array(records, pa.string()))
        return pa.StructArray.from_arrays(arrays, names, mask=pa.array(bad, pa.bool_()))

    def _kind(self, value: bytes | None) -> tuple[int | None, int, str | None]:
        """Which of the types a message is, where it begins, and the name of what was written."""
        if value is None or len(value) < 6 or value[0] != 0:
            return None, 0, None
        prefix = value[:6]
        found = self._prefixes.get(prefix)
        if found is not None:
            return found[1], found[0], found[2]
        indexes, start = _indexes(value, 5)
        kind, record = self._written(int.from_bytes(value[1:5], "big"), indexes)
        if start == 6:
            self._prefixes[prefix] = (start, kind, record)
        return kind, start, record

    def _written(self, schema_id: int, indexes: tuple[int, ...]) -> tuple[int | None, str | None]:
        if self.written is None:  # the schema is the source's own, whatever id there is
            return self._named(ProtobufSchema.read(self.types[0][1]).at(indexes))
        if schema_id in self.written:
            return self._named(self.written[schema_id].get(indexes))
        if schema_id in self.unreadable or not self.strict:
            return None, None
        raise LookupError(mark(self.source, self.part, schema_id))

    def _named(self, record: str | None) -> tuple[int | None, str | None]:
        if record is None:
            return None, None
        known = [name for name, _, _ in self.types]
        if record in known:
            return known.index(record), record
        short = [name.rpartition(".")[2] for name in known]
        last = record.rpartition(".")[2]
        return (short.index(last) if last in short else None), record


def _indexes(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The message's place in its schema, and where the message begins: a count and as many numbers, zigzag varints."""
    count, at = _varint(value, at)
    if count == 0:
        return (0,), at
    found = []
    for _ in range(count):
        if at >= len(value):
            break
        number, at = _varint(value, at)
        found.append(number)
    return tuple(found), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(value):
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (number >> 1) ^ -(number & 1), at


class _Reader:
    """Parses the messages of one type, and makes its wanted columns."""

    def __init__(self, name: str, encoded: str, paths: Sequence[tuple[str, ...]]) -> None:
        descriptor = ProtobufSchema.read(encoded).message(name)
        self._message = GetMessageClass(descriptor)
        self.columns = columns_of(descriptor, tree_of(paths))

    def parsed(self, values: list[bytes | None]) -> tuple[list[Any], list[bool]]:
        """The messages, and which of them could not be parsed."""
        parse, empty = self._message.FromString, self._message()
        messages: list[Any] = []
        bad: list[bool] = []
        for value in values:
            if value is None:
                messages.append(empty)
                bad.append(True)
                continue
            try:
                messages.append(parse(value))
                bad.append(False)
            except DecodeError:
                messages.append(empty)
                bad.append(True)
        return messages, bad


def tree_of(paths: Sequence[tuple[str, ...]]) -> Tree | None:
    """The wanted fields as a tree; None if all is wanted."""
    if () in paths:
        return None
    tree: Tree = {}
    for path in paths:
        level = tree
        for step in path[:-1]:
            below = level.setdefault(step, {})
            if below is None:
                break
            level = below
        else:
            level[path[-1]] = None
    return tree


def columns_of(descriptor: Descriptor, tree: Tree | None, above: tuple[str, ...] = ()) -> list[tuple[str, Build]]:
    """Name and builder of each wanted field, in the order of the schema."""
    wanted = descriptor.fields if tree is None else [each for each in descriptor.fields if each.name in tree]
    found = []
    for each in wanted:
        below = None if tree is None else tree[each.name]
        if below is None and not _has_type(each, (*above, descriptor.full_name)):
            continue
        found.append((each.name, _build(each, below, (*above, descriptor.full_name))))
    return found


def _has_type(each: FieldDescriptor, above: tuple[str, ...]) -> bool:
    try:
        field_type(each, above)
    except NoTypeError:
        return False
    return True


def _build(each: FieldDescriptor, tree: Tree | None, above: tuple[str, ...]) -> Build:
    """What makes the column of a field from messages."""
    get = attrgetter(each.name)
    if is_map(each):
        return _map(each, get, above)
    single = _values(each, tree, above)
    if each.is_repeated:
        return _list(get, single)
    if not each.has_presence:
        return lambda messages: single(list(map(get, messages)))
    name, default = each.name, each.message_type is None and each.has_default_value
    if each.message_type is not None and not _is_plain(each):
        return _nested(name, get, single)
    if default:  # proto2 says what stands for a field that is not set
        return lambda messages: single(list(map(get, messages)))
    return lambda messages: single([get(each) if each.HasField(name) else None for each in messages])


def _is_plain(each: FieldDescriptor) -> bool:
    """Whether a message is one value in Spark."""
    name = each.message_type.full_name
    return name == TIMESTAMP or name in WRAPPERS or name in JSON


def _values(each: FieldDescriptor, tree: Tree | None, above: tuple[str, ...]) -> Build:
    """What makes an array of the values of a field; of a scalar or of a plain message some may be None."""
    if each.message_type is None:
        return _scalars(each)
    name = each.message_type.full_name
    if name == TIMESTAMP:
        return _timestamps
    if name in JSON:
        return _json
    if name in WRAPPERS:
        inner = _scalars(each.message_type.fields_by_name["value"])
        return lambda values: inner([None if value is None else value.value for value in values])
    columns = columns_of(each.message_type, tree, above)
    names = [name for name, _ in columns]
    return lambda values: pa.StructArray.from_arrays([build(values) for _, build in columns], names)


def _scalars(each: FieldDescriptor) -> Build:
    kind = _ARROW[each.type]
    if each.enum_type is not None:
        names = {number: value.name for number, value in each.enum_type.values_by_number.items()}
        return lambda values: pa.array([None if v is None else names.get(v) or str(v) for v in values], kind)
    return lambda values: pa.array(values, kind)


def _timestamps(values: list[Any]) -> pa.Array:
    return pa.array(
        [None if value is None else value.seconds * 1_000_000 + value.nanos // 1000 for value in values], pa.int64()
    ).cast(_UTC)


def _json(values: list[Any]) -> pa.Array:
    texts = [None if value is None else json.dumps(MessageToDict(value), separators=(",", ":"), ensure_ascii=False)
             for value in values]  # fmt: skip
    return pa.array(texts, pa.string())


def _nested(name: str, get: Callable[[Any], Any], single: Build) -> Build:
    def build(messages: list[Any]) -> pa.Array:
        struct = single(list(map(get, messages)))
        unset = pa.array([not each.HasField(name) for each in messages], pa.bool_())
        return pa.StructArray.from_arrays(struct.flatten(), [each.name for each in struct.type], mask=unset)

    return build


def _list(get: Callable[[Any], Any], single: Build) -> Build:
    def build(messages: list[Any]) -> pa.Array:
        lists = list(map(get, messages))
        return pa.ListArray.from_arrays(_offsets(lists), single(list(chain.from_iterable(lists))))

    return build


def _map(each: FieldDescriptor, get: Callable[[Any], Any], above: tuple[str, ...]) -> Build:
    key, value = (each.message_type.fields_by_name[part] for part in ("key", "value"))
    keys, values = _values(key, None, above), _values(value, None, above)

    def build(messages: list[Any]) -> pa.Array:
        maps = [list(get(each).items()) for each in messages]
        pairs = list(chain.from_iterable(maps))
        return pa.MapArray.from_arrays(_offsets(maps), keys([k for k, _ in pairs]), values([v for _, v in pairs]))

    return build


def _offsets(lists: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(chain((0,), accumulate(map(len, lists))), pa.int32())
