"""Avro messages as Spark SQL: by the id that stands before them, each with the schema it was written with.

Rules
- An id that is known decodes; one that is known to be unreadable is null; one of a type that the source does not read
  is no record of this source (`is_read`). Any other id ends the batch with a mark that names it, so that it can be
  looked up and the batch be tried again: nothing is lost, and nothing is guessed.
- What cannot be decoded is null as a whole, with its bytes still in the record.
- A message is decoded once: `spark_partition_id()` in the expression keeps Spark from copying it into a filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.compiler.sqltext import text
from penstock.project.avro import READ
from penstock.project.sparktypes import quoted

RAW = "message_raw"  # a column between the two steps of decoding
ONCE = "spark_partition_id() < 0"  # never so, and nothing that Spark may evaluate twice

_HEADER = 5  # a zero byte and the id
_OPTIONS = "'mode', 'PERMISSIVE', 'enableStableIdentifiersForUnionType', 'true'"
_MARK = re.compile(r"PENSTOCK-SCHEMA-ID \[([^\]]*)\] (key|value) ([0-9A-Fa-f]{8})")


@dataclass(frozen=True)
class Written:
    """One kind of messages: the id of its schema, and its number in a union."""

    id: int | None  # None: there is no id, or any will do
    branch: int | None
    record: str | None  # its full name


@dataclass(frozen=True)
class Writer:
    """How one kind of messages is decoded."""

    of: Written
    type: str  # what it is read as: the name of a type, "" if it has none
    writer: str
    reader: str


@dataclass(frozen=True)
class ReadType:
    """A type of messages that a source reads."""

    name: str
    field: str | None  # its field in the struct of several types; None if it is the only one
    fields: tuple[tuple[str, str], ...]  # of a record: name and type
    simple: str | None = None  # the type that is no record

    @property
    def is_record(self) -> bool:
        return self.simple is None

    @property
    def ddl(self) -> str:
        """The type with `READ`, as it is decoded."""
        if self.simple is not None:
            return self.simple
        return f"STRUCT<{', '.join(f'{quoted(name)}: {ddl}' for name, ddl in (*self.fields, (READ, 'BOOLEAN')))}>"


@dataclass(frozen=True)
class AvroDecoding:
    """All that is known of a source's keys or values."""

    source: str
    part: str  # key | value
    framed: bool
    types: tuple[ReadType, ...]
    writers: tuple[Writer, ...]
    others: tuple[Written, ...] = ()  # what is in the topic, but not read
    unreadable: tuple[int, ...] = ()
    strict: bool = True  # an unknown id ends the batch; else it is null
    whole: bool = True  # a message has no `READ` in it; costs a struct, so only where somebody sees it

    def raw(self) -> str:
        """The first step: the message with `READ` in it."""
        cases = [f"when {ONCE} or {self._value} is null then null"]
        cases += [f"when {self._is(each.of)} then {self._decoded(each)}" for each in self.writers]
        known = sorted({each.of.id for each in self.writers if each.of.id is not None} | set(self.unreadable)
                       | {each.id for each in self.others if each.id is not None})  # fmt: skip
        null = f"cast(null as {self._ddl})"
        if self.framed and self.strict and not any(each.of.id is None for each in self.writers):
            framed = f"length({self._value}) >= {_HEADER} and {self._bytes(1, 1)} = X'00'"
            new = f" and {self._bytes(1, _HEADER)} not in ({', '.join(map(_header, known))})" if known else ""
            said = f"concat({text(mark(self.source, self.part, None))}, hex({self._bytes(2, 4)}))"
            cases.append(f"when {framed}{new} then cast(raise_error({said}) as {self._ddl})")
        lines = "\n".join(f"  {case}" for case in cases)
        return f"case\n{lines}\n  else {null}\nend"

    def message(self, raw: str = RAW) -> str:
        """The second step, over the column of the first: null for what could not be decoded."""
        if not self.types[0].is_record:
            return raw
        if len(self.types) == 1:
            return _own(raw, self.types[0]) if self.whole else f"if({raw}.{quoted(READ)}, {raw}, null)"
        places = {each: f"{raw}.{quoted(str(each.field))}" for each in self.types}
        fields = ", ".join(f"{text(str(each.field))}, {_own(place, each)}" for each, place in places.items())
        marks = ", ".join(f"{place}.{quoted(READ)}" for place in places.values())
        return f"if(coalesce({marks}), named_struct({fields}), null)"

    def record(self) -> str:
        """The full name of what was written; null where that is not known."""
        named = [each for each in (*(writer.of for writer in self.writers), *self.others) if each.record is not None]
        if not named:
            return "cast(null as string)"
        cases = " ".join(f"when {self._is(each)} then {text(str(each.record))}" for each in named)
        return f"case {cases} end"

    def is_read(self) -> str | None:
        """The condition that a record is not of a type that the source does not read; None if all are."""
        if not self.others:
            return None
        return f"not coalesce({' or '.join(f'({self._is(each)})' for each in self.others)}, false)"

    # -- parts --------------------------------------------------------------------------------------------------------
    @property
    def _value(self) -> str:
        return quoted(self.part)

    @property
    def _ddl(self) -> str:
        if len(self.types) == 1:
            return self.types[0].ddl
        return f"STRUCT<{', '.join(f'{quoted(str(each.field))}: {each.ddl}' for each in self.types)}>"

    def _bytes(self, first: int, count: int) -> str:
        return f"substring({self._value}, {first}, {count})"

    def _is(self, written: Written) -> str:
        conditions = []
        if written.id is not None:
            conditions.append(f"{self._bytes(1, _HEADER)} = {_header(written.id)}")
        elif self.framed:
            conditions.append(f"{self._bytes(1, 1)} = X'00'")
        if written.branch is not None:
            at = _HEADER + 1 if self.framed else 1
            conditions.append(f"{self._bytes(at, 1)} = X'{written.branch * 2:02X}'")  # zigzag
        return " and ".join(conditions) or "true"

    def _decoded(self, writer: Writer) -> str:
        skipped = (_HEADER if self.framed else 0) + (1 if writer.of.branch is not None else 0)
        body = self._value if not skipped else f"substring({self._value}, {skipped + 1})"
        options = f"map('avroSchema', {text(writer.reader)}, {_OPTIONS})"
        decoded = f"from_avro({body}, {text(writer.writer)}, {options})"
        if len(self.types) == 1:
            return decoded
        fields = ", ".join(f"{text(str(each.field))}, {decoded if each.name == writer.type else _null(each.ddl)}"
                           for each in self.types)  # fmt: skip
        return f"named_struct({fields})"


def own_fields(raw: str, condition: str, names: Iterable[str]) -> str:
    """A struct without the marks that decoding puts into it; null unless the condition holds."""
    fields = ", ".join(f"{text(name)}, {raw}.{quoted(name)}" for name in names)
    return f"if({condition}, {f'named_struct({fields})' if fields else raw}, null)"


def _own(raw: str, kind: ReadType) -> str:
    return own_fields(raw, f"{raw}.{quoted(READ)}", [name for name, _ in kind.fields])


def mark(source: str, part: str, schema_id: int | None) -> str:
    """What a failure says of a message whose schema has to be looked up; the id may come behind it."""
    return f"PENSTOCK-SCHEMA-ID [{source}] {part} {'' if schema_id is None else f'{schema_id:08X}'}"


def unknown_ids(failure: str) -> Sequence[tuple[str, str, int]]:
    """Source, part and id of the messages that a batch failed for."""
    return list(dict.fromkeys((each[0], each[1], int(each[2], 16)) for each in _MARK.findall(failure)))


def _header(schema_id: int) -> str:
    return f"X'00{schema_id:08X}'"


def _null(ddl: str) -> str:
    return f"cast(null as {ddl})"
