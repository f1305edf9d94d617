"""What a change of a stream's spec means for its running state.

Rules
- NEW: nothing is deployed. NO-OP: the same definition. HOT: taken over without a restart (nothing is, yet).
- RESTART: the stream starts again on its checkpoint and its table; nothing is lost or read twice.
- REBUILD: state, offsets or rows do not fit the new definition; the table is computed anew from its inputs' start.
- Every reason is a sentence that a person can act on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.compiler.spec import (
    FromOffsets,
    FromTimestamp,
    Input,
    KafkaInput,
    StreamSpec,
    TableStreamInput,
    Watermark,
)
from penstock.compiler.statement import same_tokens, stream_reads


class Verdict(str, Enum):
    NEW = "NEW"
    NO_OP = "NO-OP"
    HOT = "HOT"
    RESTART = "RESTART"
    REBUILD = "REBUILD"


@dataclass(frozen=True)
class Plan:
    """What deploying the new spec does, and why."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()


def plan_change(old: StreamSpec | None, new: StreamSpec) -> Plan:
    """The plan for replacing the deployed spec by a new one."""
    if old is None:
        return Plan(Verdict.NEW)
    if old.hash == new.hash:
        return Plan(Verdict.NO_OP)
    rebuild, restart = _Reasons(old, new).all()
    if rebuild:
        return Plan(Verdict.REBUILD, tuple(rebuild))
    if restart:
        return Plan(Verdict.RESTART, tuple(restart))
    if old.model_copy(update={"sql": new.sql}).hash == new.hash:
        return Plan(Verdict.NO_OP, ("only comments or white space changed",))
    return Plan(Verdict.RESTART, ("the names of the inputs' views changed",))


class _Reasons:
    def __init__(self, old: StreamSpec, new: StreamSpec) -> None:
        self.old = old
        self.new = new
        self.rebuild: list[str] = []
        self.restart: list[str] = []

    def all(self) -> tuple[list[str], list[str]]:
        old, new = self.old, self.new
        stateful = old.stateful or new.stateful
        self._note(old.format_version != new.format_version, rebuild=True, reason="the format of specs changed")
        self._output()
        self._inputs(stateful=stateful)
        self._sql()
        self._setting("shuffle_partitions", old.shuffle_partitions, new.shuffle_partitions, rebuild=stateful)
        self._setting("small_batch_rows", old.small_batch_rows, new.small_batch_rows)
        self._setting("time_window", f"{old.trigger.time_window_ms} ms", f"{new.trigger.time_window_ms} ms")
        self._setting("buffer_limit", old.trigger.buffer_limit, new.trigger.buffer_limit)
        self._setting("max_batch_rows", old.trigger.max_batch_rows, new.trigger.max_batch_rows)
        self._setting("model file", old.path, new.path)
        self._setting("dbt id", old.unique_id, new.unique_id)
        return self.rebuild, self.restart

    def _sql(self) -> None:
        old, new = self.old, self.new
        if same_tokens(old.sql, new.sql):
            return
        if old.stateful != new.stateful:
            self.rebuild.append(f"the query {'keeps state now' if new.stateful else 'keeps no state any more'}")
        elif new.stateful:
            self.rebuild.append("the SQL of a stateful query changed")
        elif stream_reads(old.sql, _views(old)) != stream_reads(new.sql, _views(new)):
            self.rebuild.append("the order in which the query reads its streams changed")
        else:
            self.restart.append("the SQL changed")

    def _output(self) -> None:
        old, new = self.old.output, self.new.output
        self._setting("table", old.relation, new.relation, rebuild=True)
        self._setting("output mode", old.mode.value, new.mode.value, rebuild=True)
        if old.mode == new.mode:
            self._setting("key", _listed(old.keys), _listed(new.keys), rebuild=True)

    def _inputs(self, *, stateful: bool) -> None:
        old, new = _streams(self.old), _streams(self.new)
        for relation in old.keys() - new.keys():
            self.rebuild.append(f"input {relation} is gone")
        for relation in new.keys() - old.keys():
            self.rebuild.append(f"input {relation} is new")
        for relation in [name for name in old if name in new]:
            self._input(relation, old[relation], new[relation], stateful=stateful)
        tables = [{each.relation for each in spec.inputs if each.kind == "table"} for spec in (self.old, self.new)]
        for relation in sorted(tables[0] ^ tables[1]):
            self._note(
                True, rebuild=stateful, reason=f"table {relation} is {'new' if relation in tables[1] else 'gone'}"
            )

    def _input(self, relation: str, old: Input, new: Input, *, stateful: bool) -> None:
        if isinstance(old, KafkaInput) and isinstance(new, KafkaInput):
            self._topics(relation, old, new)
            self._setting(f"bootstrap.servers of {relation}", old.bootstrap, new.bootstrap)
            self._setting(f"start of {relation}", _start(old), _start(new))
            for part in ("value", "key"):
                formats = [_format(each, part) for each in (old, new)]
                self._setting(f"{part} format of {relation}", *formats, rebuild=stateful)
            # Names alone: a value may be a password.
            changed = sorted({name for name, _ in set(old.options) ^ set(new.options)})
            self._note(bool(changed), rebuild=False, reason=f"options of {relation}: {', '.join(changed)}")
            self._columns(relation, old, new, stateful=stateful)
            self._watermark(relation, old.watermark, new.watermark, stateful=stateful)
        elif isinstance(old, TableStreamInput) and isinstance(new, TableStreamInput):
            self._watermark(relation, old.watermark, new.watermark, stateful=stateful)
        elif old.kind != new.kind:
            self._setting(f"kind of {relation}", old.kind, new.kind, rebuild=True)

    def _topics(self, relation: str, old: KafkaInput, new: KafkaInput) -> None:
        """A checkpoint goes on with more partitions than it knows, and not with fewer."""
        self._setting("topic", old.topic or old.topic_pattern, new.topic or new.topic_pattern, rebuild=True)
        gone = bool(new.partitions) and not set(old.partitions or new.partitions) <= set(new.partitions)
        narrowed = bool(new.partitions) and not old.partitions
        before, after = (", ".join(map(str, each.partitions)) or "all" for each in (old, new))
        self._setting(f"partitions of {relation}", before, after, rebuild=gone or narrowed)

    def _columns(self, relation: str, old: KafkaInput, new: KafkaInput, *, stateful: bool) -> None:
        before = {column.name: (column.type, column.expr or column.origin) for column in old.columns}
        after = {column.name: (column.type, column.expr or column.origin) for column in new.columns}
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                self._note(True, rebuild=stateful, reason=f"column {relation}.{name} is gone")
            elif name not in before:
                # A new column reaches the state only through the SQL, and a changed SQL is its own reason.
                self._note(True, rebuild=stateful and "*" in self.new.sql, reason=f"column {relation}.{name} is new")
            else:
                self._setting(f"type of {relation}.{name}", before[name][0], after[name][0], rebuild=stateful)
                self._setting(f"origin of {relation}.{name}", before[name][1], after[name][1], rebuild=stateful)
        if list(before) != list(after) and before == after:
            self._note(True, rebuild=stateful and "*" in self.new.sql, reason=f"columns of {relation} are reordered")

    def _watermark(self, relation: str, old: Watermark | None, new: Watermark | None, *, stateful: bool) -> None:
        """A delay may change on a running state; the column, or having one at all, is part of the state's plan."""
        self._setting(f"watermark of {relation}", old and old.column, new and new.column, rebuild=stateful)
        if old and new and old.column == new.column:
            self._setting(f"watermark delay of {relation}", old.delay, new.delay)

    def _setting(self, name: str, old: object, new: object, *, rebuild: bool = False) -> None:
        before, after = ("none" if value is None else value for value in (old, new))
        self._note(old != new, rebuild=rebuild, reason=f"{name} {before} -> {after}")

    def _note(self, changed: bool, *, rebuild: bool, reason: str) -> None:
        if changed:
            (self.rebuild if rebuild else self.restart).append(reason)


def _streams(spec: StreamSpec) -> dict[str, Input]:
    return {each.relation: each for each in spec.inputs if each.kind != "table"}


def _views(spec: StreamSpec) -> frozenset[str]:
    return frozenset(each.view for each in spec.inputs if isinstance(each, KafkaInput | TableStreamInput))


def _start(source: KafkaInput) -> str:
    if isinstance(source.starting, FromTimestamp):
        return source.starting.timestamp.isoformat()
    if isinstance(source.starting, FromOffsets):
        return ", ".join(f"{partition}: {offset}" for partition, offset in source.starting.offsets)
    return source.starting


def _format(source: KafkaInput, part: str) -> str:
    name, options = (
        (source.key_format, source.key_options) if part == "key" else (source.value_format, source.value_options)
    )
    return " ".join([name, *(f"{option}={value!r}" for option, value in options)])


def _listed(keys: tuple[str, ...]) -> str:
    return f"({', '.join(keys)})"
