"""What a change of a stream's spec means for its running state.

Rules
- NEW: nothing is deployed. NO-OP: the same definition.
- HOT: settings that the running query does not hold, or that its writer looks up at each batch: taken over at once.
- RESTART: the stream starts again on its checkpoint and its table; nothing is lost or read twice.
- A table that is refreshed in full is computed anew by the next refresh, whatever changed: RESTART.
- REBUILD: state, offsets or rows do not fit the new definition; the table is computed anew from its inputs' start.
- The new texts are put into the deployed words where they differ in comments and white space alone, at one place.
- Of a source only what the query reads can reach its state; which records are rows is so from the next batch on.
- A field of the spec that no rule knows is a REBUILD: too careful, never wrong.
- Every reason is a sentence that a person can act on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.compiler.decoding import with_origins
from penstock.compiler.formats import BY_PLACE
from penstock.compiler.origins import decoder, part
from penstock.compiler.spec import (
    Column,
    FromOffsets,
    FromTimestamp,
    Input,
    KafkaInput,
    Publish,
    StreamSpec,
    TableStreamInput,
    Watermark,
)
from penstock.compiler.state import knows_time, reads
from penstock.compiler.statement import moved_lines, names_of_aliases, names_used, same_tokens
from penstock.project.durations import interval


class Verdict(str, Enum):
    NEW = "NEW"
    NO_OP = "NO-OP"
    HOT = "HOT"
    RESTART = "RESTART"
    REBUILD = "REBUILD"
    REFUSED = "REFUSED"  # a rebuild that would lose rows, and that nobody confirmed
    ORPHAN = "ORPHAN"  # deployed, and no longer in the project


# The fields that the rules below look at; a part of a spec has no others.
KNOWN_FIELDS: dict[str, frozenset[str]] = {
    "spec": frozenset({
        "format_version", "name", "unique_id", "origin", "path", "sql", "stateful", "inputs", "output", "trigger",
        "shuffle_partitions", "small_batch_rows", "line_map", "follow", "functions", "deduplicate_by", "refresh_mode",
        "reason", "refused", "warnings", "publish", "maintenance", "expectations",
        "own_key", "event_time", "joined",
    }),
    "kafka": frozenset({
        "kind", "view", "relation", "topic", "topic_pattern", "partitions", "bootstrap", "starting", "key_format",
        "value_format", "key_options", "value_options", "columns", "watermark", "options", "on_bad_record", "registry",
        "key_schema", "value_schema", "rejects", "backfill",
        "null_rows",  # of followed queries, which are never replaced
    }),
    # Where it starts is of followed queries, too.
    "table_stream": frozenset({"kind", "view", "relation", "watermark", "rows", "keys", "starting"}),
    "table": frozenset({"kind", "relation"}),
    "column": frozenset({"name", "type", "origin", "expr", "read_as"}),
    "output": frozenset({
        "relation", "mode", "keys", "changes", "view", "contract", "checks", "on_schema_change",
    }),
    "function": frozenset({"name", "called", "signature", "body"}),
    "publish": frozenset({
        "topic", "key", "key_format", "value_format", "key_in_value", "table", "delivery", "partitions", "real_time",
    }),
    "trigger": frozenset({"time_window_ms", "buffer_limit", "max_batch_rows"}),
}  # fmt: skip

_OTHER_COLUMNS = ("ignore", "append_new_columns")  # with these the table may have other columns than its query

# Not of a table that is refreshed in full: all its rows are as the new SQL has them.
FROM_NOW_ON = "from the next batch on; rows that are there stay as they are, unless --full-refresh computes them anew"


@dataclass(frozen=True)
class Plan:
    """What deploying the new spec does, and why."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()


def plan_change(old: StreamSpec | None, new: StreamSpec) -> Plan:
    """The plan for replacing the deployed spec by a new one."""
    if old is None:
        return Plan(Verdict.NEW)
    if old.refused and new.refresh_mode == "auto" and not new.is_full and same_tokens(old.sql, new.whole_sql):
        new = new.as_full(str(old.reason))  # what the engine found then holds for the same query
    if old.hash == new.hash:
        return Plan(Verdict.NO_OP)
    new = _in_words_of(old, new)
    if old.hash == new.hash:
        return Plan(Verdict.NO_OP, ("only comments or white space changed",))
    found = _Reasons(old, new).all()
    output = old.output.model_copy(update={"on_schema_change": new.output.on_schema_change})
    if old.is_full and new.is_full and output == new.output:
        return Plan(Verdict.RESTART, (*found.rebuild, *found.restart, *found.hot))  # it is computed anew anyway
    if found.rebuild:
        return Plan(Verdict.REBUILD, tuple(found.rebuild))
    if found.restart:
        return Plan(Verdict.RESTART, (*found.restart, *found.hot))
    if found.hot:
        return Plan(Verdict.HOT, tuple(found.hot))
    return Plan(Verdict.RESTART, ("the inputs are listed in another order",))


def told_anew(old: StreamSpec, new: StreamSpec) -> StreamSpec:
    """The deployed spec with all that only tells people of it as the new one has it; as it is if that is another one.

    A running query has the lines of the SQL that it was started with, so that stays: the map leads from there to the
    lines that the model file has now.
    """
    found = _in_words_of(old, new)
    if found.hash != old.hash:
        return old
    lines = new.line_map
    if old.whole_sql != new.whole_sql and lines:
        lines = tuple(lines[min(line, len(lines) - 1)] for line in moved_lines(old.whole_sql, new.whole_sql))
    return found.model_copy(update={"line_map": lines})


def _in_words_of(old: StreamSpec, new: StreamSpec) -> StreamSpec:
    """The new spec with the deployed texts where they differ in comments and white space alone: whatever still differs
    then is another query, or another setting."""
    known = {each.name: each for each in old.functions}
    functions = tuple(
        known[each.name] if each.name in known and same_tokens(known[each.name].definition, each.definition) else each
        for each in new.functions
    )
    follow = new.follow
    if old.follow is not None and follow is not None:
        texts = {"sql": _worded(old.follow.sql, follow.sql), "whole": _worded(old.follow.whole, follow.whole)}
        follow = follow.model_copy(update=texts)
    return new.model_copy(update={"sql": _worded(old.sql, new.sql), "follow": follow, "functions": functions})


def _worded(old: str, new: str) -> str:
    return old if same_tokens(old, new) else new


def source_changes(old: StreamSpec | None, new: StreamSpec) -> dict[str, tuple[str, ...]]:
    """Each source that a stream reads as a stream -> what changed of it since the deployed spec."""
    topics = {each.relation: each for each in new.inputs if isinstance(each, KafkaInput)}
    before = {each.relation: each for each in old.inputs if isinstance(each, KafkaInput)} if old else {}
    found: dict[str, tuple[str, ...]] = {}
    for relation, topic in topics.items():
        reasons = _Reasons(new, new)
        if relation in before:
            reasons._input(relation, before[relation], topic, stateful=False)
        found[relation] = tuple(reasons.rebuild + reasons.restart + reasons.hot)
    return found


class _Reasons:
    def __init__(self, old: StreamSpec, new: StreamSpec) -> None:
        self.old = old
        self.new = new
        self.rebuild: list[str] = []
        self.restart: list[str] = []
        self.hot: list[str] = []

    def all(self) -> _Reasons:
        old, new = self.old, self.new
        stateful = old.stateful or new.stateful
        self._note(old.format_version != new.format_version, rebuild=True, reason="the format of specs changed")
        self._setting("kind", old.origin.value, new.origin.value, rebuild=True)
        self._output()
        # A table of changes has a row of long ago: a column that is decoded otherwise would be so in new rows alone.
        self._inputs(stateful=stateful or new.output.changes is not None)
        self._sql()
        self._functions(stateful=stateful)
        before, after = (", ".join(each.deduplicate_by) or None for each in (old, new))
        self._setting("deduplicate_by", before, after, rebuild=True)
        self._published(old.publish, new.publish)
        self._setting("shuffle_partitions", old.shuffle_partitions, new.shuffle_partitions, rebuild=stateful)
        self._setting("time_window", f"{old.trigger.time_window_ms} ms", f"{new.trigger.time_window_ms} ms")
        self._setting("buffer_limit", old.trigger.buffer_limit, new.trigger.buffer_limit)
        self._setting("max_batch_rows", old.trigger.max_batch_rows, new.trigger.max_batch_rows)
        self._hot("small_batch_rows", old.small_batch_rows, new.small_batch_rows)
        names = sorted({each.name for each in set(old.expectations) ^ set(new.expectations)})
        self._note(old.expectations != new.expectations, rebuild=False, reason=f"expectations: {', '.join(names)}")
        self._hot("maintenance", _upkeep(old), _upkeep(new))
        self._hot("model file", old.path, new.path)
        self._hot("dbt id", old.unique_id, new.unique_id)
        self._unknown()
        return self

    def _sql(self) -> None:
        old, new = self.old, self.new
        if old.sql == new.sql:
            # Above an aggregate it is part of a query with state: groups that do not change would keep their rows.
            self._note(old.follow != new.follow, rebuild=new.stateful, reason=self._other_sql())
        elif old.stateful != new.stateful:
            self.rebuild.append(f"the query {'keeps state now' if new.stateful else 'keeps no state any more'}")
        elif new.stateful:
            self.rebuild.append("the SQL of a stateful query changed")
        elif reads(old) != reads(new):
            self.rebuild.append("the order in which the query reads its streams changed")
        else:
            self.restart.append(self._other_sql())

    def _other_sql(self) -> str:
        if self.new.stateful or self.new.is_full or not self.new.has_table:
            return "the SQL changed"
        return f"the SQL changed, {FROM_NOW_ON}"

    def _functions(self, *, stateful: bool) -> None:
        before, after = ({each.name: each for each in spec.functions} for spec in (self.old, self.new))
        for name in sorted({*before, *after}):
            one, other = before.get(name), after.get(name)
            if one is None or other is None:
                self._note(True, rebuild=stateful, reason=f"function {name} is {'new' if other else 'gone'}")
            else:
                self._note(one != other, rebuild=stateful, reason=f"function {name} changed")

    def _output(self) -> None:
        old, new = self.old.output, self.new.output
        self._setting("table", old.relation, new.relation, rebuild=True)
        self._setting("view", old.view, new.view, rebuild=True)
        # The state of a join is the same in either of Spark's modes.
        mode = "append" if self.new.joined else "update"
        self._note(self.old.joined != self.new.joined, rebuild=False, reason=f"Spark gives its rows in {mode} mode")
        self._setting("output mode", old.mode.value, new.mode.value, rebuild=True)
        self._note(old.changes != new.changes, rebuild=True, reason="how the table's changes are told apart")
        if old.mode == new.mode:
            self._setting("key", _listed(old.keys), _listed(new.keys), rebuild=True)
        self._note(old.contract != new.contract, rebuild=False, reason="the contract changed")
        changed = sorted({name for name, _ in set(old.checks) ^ set(new.checks)})
        self._note(bool(changed), rebuild=False, reason=f"constraints: {', '.join(changed)}")
        before, after = old.on_schema_change, new.on_schema_change
        if before in _OTHER_COLUMNS:
            self._setting("on_schema_change", before, after)
        else:
            self._hot("on_schema_change", before, after)

    def _published(self, old: Publish | None, new: Publish | None) -> None:
        """A topic keeps what is in it: what is published otherwise is so from the next batch on."""
        if self.old.has_table != self.new.has_table:
            self._note(True, rebuild=True, reason=f"the table is {'new' if self.new.has_table else 'gone'}")
        if old is None or new is None:
            on = f"rows are published to topic {new.topic} from the next batch on" if new else ""
            off = f"rows are no longer published to topic {old.topic}" if old else ""
            self._note(old != new, rebuild=False, reason=on or off)
            return
        mode = ["real_time" if each.real_time else "micro_batch" for each in (old, new)]
        self._setting("mode", *mode)  # either writes down offsets and batches as the other reads them
        before, after = old.topic, new.topic
        self._note(before != after, rebuild=False, reason=f"topic {before} -> {after}, from the next batch on")
        self._setting("key of messages", _listed(old.key), _listed(new.key))
        for name in ("key_format", "value_format", "key_in_value", "delivery"):
            self._setting(f"publish.{name}", getattr(old, name), getattr(new, name))
        self._hot("publish.partitions", old.partitions, new.partitions, more=" (for a topic that is made)")

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
            self._hot(f"start of {relation}", _start(old), _start(new), more=" (for the next rebuild)")
            before, after = ("batch" if each.backfill else "none" for each in (old, new))
            self._hot(f"backfill of {relation}", before, after, more=" (for the next rebuild)")
            self._setting(f"on_bad_record of {relation}", old.on_bad_record, new.on_bad_record)
            for name in ("value", "key"):
                formats = [_format(each, name) for each in (old, new)]
                rebuild = stateful and _is_read(name, old, new)
                self._setting(f"{name} format of {relation}", *formats, rebuild=rebuild)
            # Names alone: a value may be a password.
            changed = sorted({name for name, _ in set(old.options) ^ set(new.options)})
            self._note(bool(changed), rebuild=False, reason=f"options of {relation}: {', '.join(changed)}")
            changed = sorted({name for name, _ in set(old.registry) ^ set(new.registry)})
            self._note(bool(changed), rebuild=False, reason=f"schema registry of {relation}: {', '.join(changed)}")
            self._schemas(relation, old, new)
            self._columns(relation, old, new, stateful=stateful)
            self._watermark(relation, old.watermark, new.watermark)
        elif isinstance(old, TableStreamInput) and isinstance(new, TableStreamInput):
            self._setting(f"how {relation} changes", old.rows, new.rows, rebuild=True)
            self._setting(f"key of {relation}", _listed(old.keys), _listed(new.keys), rebuild=True)
            self._watermark(relation, old.watermark, new.watermark)
        elif old.kind != new.kind:
            self._setting(f"kind of {relation}", old.kind, new.kind, rebuild=True)

    def _topics(self, relation: str, old: KafkaInput, new: KafkaInput) -> None:
        """A checkpoint goes on with more partitions than it knows, and not with fewer."""
        wider = old.topic is not None and new.topic_pattern is not None and new.reads(old.topic)
        late = knows_time(self.new, new.watermark)  # the history of the topics that it has besides
        before, after = old.topic or old.topic_pattern, new.topic or new.topic_pattern
        self._setting("topic", before, after, rebuild=late or not wider)
        gone = bool(new.partitions) and not set(old.partitions or new.partitions) <= set(new.partitions)
        narrowed = bool(new.partitions) and not old.partitions
        before, after = (", ".join(map(str, each.partitions)) or "all" for each in (old, new))
        self._setting(f"partitions of {relation}", before, after, rebuild=gone or narrowed)

    def _schemas(self, relation: str, old: KafkaInput, new: KafkaInput) -> None:
        """What it does to columns is told of them: a schema by itself changes how messages are read, and no state."""
        for name, before, after in (
            ("key", old.key_schema, new.key_schema),
            ("value", old.value_schema, new.value_schema),
        ):
            self._note(before != after, rebuild=False, reason=f"schema of {relation}'s {name}s")

    def _columns(self, relation: str, old: KafkaInput, new: KafkaInput, *, stateful: bool) -> None:
        before, after = ({column.name.lower(): column for column in each.columns} for each in (old, new))
        read = self._read(old) | self._read(new)
        # It reaches the state only through the SQL, and a changed SQL is its own reason.
        every = stateful and self._reads_all()
        # A name that was an alias is the column's as soon as there is one, and the alias's again when it is gone.
        meant = names_of_aliases(self.new.sql, new.view) if stateful and not every else frozenset()
        for name in sorted(before.keys() | after.keys()):
            one, other = before.get(name), after.get(name)
            if one is None or other is None:
                column, what = (before[name], "gone") if other is None else (other, "new")
                rebuild = every or (stateful and name in meant)
                self._note(True, rebuild=rebuild, reason=f"column {relation}.{column.name} is {what}")
            else:
                rebuild = stateful and name in read
                self._setting(f"name of {relation}.{one.name}", one.name, other.name, rebuild=every)
                self._setting(f"type of {relation}.{other.name}", one.type, other.type, rebuild=rebuild)
                origins = _origin(old, one), _origin(new, other)
                self._setting(f"origin of {relation}.{other.name}", *origins, rebuild=rebuild)
        reordered = list(before) != list(after) and before.keys() == after.keys()
        self._note(reordered, rebuild=every, reason=f"columns of {relation} are reordered")

    def _reads_all(self) -> bool:
        return names_used(self.new.sql) is None or self.new.output.changes is not None

    def _read(self, source: KafkaInput) -> frozenset[str]:
        """The columns that a query reads, in lower case: by their names, as its event time, or for one of these."""
        names = {column.name for column in source.columns}
        if not self._reads_all():
            names = {*(names_used(self.new.sql) or ())}
            if source.watermark is not None and knows_time(self.new, source.watermark):
                names.add(source.watermark.column)
        return frozenset(name.lower() for name in with_origins(source, names))

    def _watermark(self, relation: str, old: Watermark | None, new: Watermark | None) -> None:
        """A delay may change on a running state; the column, or having one at all, is part of the state's plan."""
        rebuild = knows_time(self.new, old) or knows_time(self.new, new)
        self._setting(f"watermark of {relation}", old and old.column, new and new.column, rebuild=rebuild)
        if old and new and old.column == new.column:
            self._setting(f"watermark delay of {relation}", old.delay, new.delay)

    def _setting(self, name: str, old: object, new: object, *, rebuild: bool = False) -> None:
        before, after = ("none" if value is None else value for value in (old, new))
        self._note(old != new, rebuild=rebuild, reason=f"{name} {before} -> {after}")

    def _hot(self, name: str, old: object, new: object, more: str = "") -> None:
        if old != new:
            self.hot.append(f"{name} {old} -> {new}{more}")

    def _unknown(self) -> None:
        """Differences in fields that no rule above looks at."""
        old, new = (spec.model_dump(mode="json") for spec in (self.old, self.new))
        self._beyond("spec", old, new)
        for name in ("output", "trigger", "publish"):
            if old.get(name) and new.get(name):  # one that is new or gone is told already
                self._beyond(name, old[name], new[name])
        before = {each["relation"]: each for each in old["inputs"]}
        for item in new["inputs"]:
            other = before.get(item["relation"])
            if other is None or other["kind"] != item["kind"]:
                continue  # told already
            self._beyond(item["kind"], other, item, f" of {item['relation']}")
            columns = {column["name"]: column for column in other.get("columns", ())}
            for column in item.get("columns", ()):
                where = f" of {item['relation']}.{column['name']}"
                self._beyond("column", columns.get(column["name"], column), column, where)

    def _beyond(self, part: str, old: dict[str, Any], new: dict[str, Any], where: str = "") -> None:
        for name in sorted((old.keys() | new.keys()) - KNOWN_FIELDS[part]):
            self._note(old.get(name) != new.get(name), rebuild=True, reason=f"{name}{where} changed")

    def _note(self, changed: bool, *, rebuild: bool, reason: str) -> None:
        if changed:
            (self.rebuild if rebuild else self.restart).append(reason)


def _streams(spec: StreamSpec) -> dict[str, Input]:
    return {each.relation: each for each in spec.inputs if each.kind != "table"}


def _start(source: KafkaInput) -> str:
    if isinstance(source.starting, FromTimestamp):
        return source.starting.timestamp.isoformat()
    if isinstance(source.starting, FromOffsets):
        return ", ".join(f"{partition}: {offset}" for partition, offset in source.starting.offsets)
    return source.starting


def _upkeep(spec: StreamSpec) -> str:
    found = spec.maintenance.model_dump(exclude_none=True) if spec.maintenance is not None else {}
    return ", ".join(f"{name} {interval(value)}" for name, value in found.items()) or "as the profile says"


def _format(source: KafkaInput, part: str) -> str:
    name, options = (
        (source.key_format, source.key_options) if part == "key" else (source.value_format, source.value_options)
    )
    return " ".join([name, *(f"{option}={value!r}" for option, value in options)])


def _origin(source: KafkaInput, column: Column) -> str:
    """Where a column comes from. In some formats a field is found by its place, whatever its name is."""
    name, is_field, _ = column.origin.partition(".")
    if is_field and (source.key_format if name == "key" else source.value_format) in BY_PLACE:
        fields = list(dict.fromkeys(each.origin for each in part(source, name).columns))
        return f"{column.origin} (field {fields.index(column.origin) + 1})"
    return column.expr or column.origin


def _is_read(name: str, *sources: KafkaInput) -> bool:
    """Whether the key or value has to do with the rows: a column comes from it, or no record is a row that has none in
    its format."""
    read = any(column.origin.partition(".")[0] == name for each in sources for column in each.columns)
    return read or (name == "value" and any(decoder(each, name).ready for each in sources))


def _listed(keys: tuple[str, ...]) -> str:
    return f"({', '.join(keys)})"
