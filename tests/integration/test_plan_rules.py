"""Every rule of the plan, performed on a real checkpoint.

The streams of some cases are deployed, read their history, and are changed together, once; each test then looks at what
became of its own. (All cases at once would mostly ask the broker whether there is more.) A RESTART goes on with its
state and its offsets: no row is lost, none comes twice. For a REBUILD the changed query is also forced onto the old
checkpoint, past the plan: there it fails, or its rows are wrong.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from published_messages import read_topic

from penstock.compiler.spec import (
    Column,
    Follow,
    Function,
    Input,
    KafkaInput,
    MessageType,
    Output,
    OutputMode,
    Publish,
    Schema,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Trigger,
    Watermark,
)
from penstock.control.streams import drop_stream
from penstock.errors import PenstockError
from penstock.kafka.admin import client_config, create_topics
from penstock.project.expectations import Expectation
from penstock.project.maintenance import OwnMaintenance
from penstock.project.protobuf import ProtobufSchema
from penstock.project.protoc import compiled
from penstock.store import StreamState, Wanted

if TYPE_CHECKING:
    from tests.conftest import Platform
else:
    Platform = Any

pytestmark = [pytest.mark.timeout(600), pytest.mark.deep]

FAILS, WRONG, IGNORED = "fails", "wrong rows", "ignored"
KEY_SCHEMA, VALUE_SCHEMA = (f"STATE_STORE_{part}_SCHEMA_NOT_COMPATIBLE" for part in ("KEY", "VALUE"))
# partition, key, value, seconds; then what comes after the change
HISTORY = [(0, "a", 1, 0), (0, "b", 2, 1), (1, "a", 3, 2), (1, "c", -4, 3), (0, "a", 1, 4)]
LATER = [(0, "a", 5, 5), (1, "b", 2, 6), (0, "d", 7, 7)]
ALL = HISTORY + LATER
COLUMNS = (
    Column(name="k", type="string", origin="value.k"),
    Column(name="v", type="bigint", origin="value.v"),
    Column(name="at", type="timestamp", origin="value.at"),
    Column(name="part", type="int", origin="partition"),
    Column(name="pos", type="bigint", origin="offset"),
)
ROWS = "select part, pos, k, v from input"
COUNTS = "select k, count(*) as n, sum(v) as total from input group by k"
WINDOWS = "select window.start as w, count(*) as n from input group by window(at, '4 seconds')"


@dataclass(frozen=True)
class Case:
    """A change of a stream, and what has to become of it."""

    name: str
    verdict: str
    change: dict[str, Any]
    sql: str = ROWS
    keys: tuple[str, ...] | None = None
    stateful: bool = False
    source: dict[str, Any] = field(default_factory=dict)  # of the input, before
    spec: dict[str, Any] = field(default_factory=dict)  # before
    rows: list[tuple[Any, ...]] | None = None  # in the end; of a rebuild: what the forced query should have given
    forced: str | None = None  # how a rebuild's query ends on the old checkpoint
    says: str = ""  # the error, when it fails there
    reason: str = ""
    published: dict[str, list[tuple[int, str, int, int]]] = field(default_factory=dict)  # topic -> of which messages
    avro: list[tuple[int, str, int, int]] = field(default_factory=list)  # those of them that are in Avro
    begun: int | None = None  # of a stream that reads a table: how many rows it has before the change
    shows: tuple[Any, ...] | None = None  # and one that it has when it has read what came later


def listed(rows: list[tuple[int, str, int, int]]) -> list[tuple[Any, ...]]:
    """As ROWS has them."""
    ends = {0: 0, 1: 0}
    found = []
    for part, k, v, _ in rows:
        found.append((part, ends[part], k, v))
        ends[part] += 1
    return found


def counted(rows: list[tuple[int, str, int, int]]) -> list[tuple[Any, ...]]:
    """As COUNTS has them."""
    keys = sorted({k for _, k, _, _ in rows})
    return [(k, sum(r[1] == k for r in rows), sum(r[2] for r in rows if r[1] == k)) for k in keys]


STATE = {"sql": COUNTS, "keys": ("k",), "stateful": True}
FASTER = Trigger(time_window_ms=300, max_batch_rows=2)
BOTH = listed(ALL)
OF_COUNTS = counted(ALL)
# A key belongs in one partition: of those in two, Spark may read either first.
OF_ONE = "select k, v from input where part = 0"
LAST = sorted({k: (k, v) for part, k, v, _ in ALL if part == 0}.values())
POSITIVE = counted([row for row in ALL if row[2] > 0])
USED = COLUMNS[:2]
NEW_COLUMN = (*COLUMNS, Column(name="more", type="string", origin="value.more"))
AHEAD = (*COLUMNS, Column(name="ahead", type="timestamp", origin="computed", expr="at + interval 1 hour"))
WEIGHED = "select part, pos, k, weigh(v) as v from input"
TIMES = {
    number: (Function(name="rules.weigh", called="weigh", signature="(x bigint) RETURNS bigint", body=f"x * {number}"),)
    for number in (10, 100)
}
WEIGHTED = "select part, pos, i.k, v * f.times as v from input i join {schema}.factor f on i.k = f.k"
BOTH_WAYS = f"{ROWS} union all {ROWS.replace('input', 'second')}"
PAIRS = "select i.k, i.v, s.v as w from input i join second s on i.k = s.k and i.part = s.part"
TIMED = "select i.k, i.at, s.v as w from input i join second s on i.k = s.k and i.at = s.at and s.v > 0"
EXACT = {"watermark": Watermark(column="at", delay="0 seconds")}
FIELDS = tuple(Column(name=name, type="string", origin=f"value.{name}") for name in ("one", "two"))
PARTS = tuple(Column(name=name, type="string", origin=f"key.{name}") for name in ("one", "two"))
OF_KEYS = {"columns": PARTS, "key_format": "csv"}
KEYS = "select one, count(*) as n from input group by one"
# The later a message, the further back: to a watermark there, all that comes is late.
BACK = (*COLUMNS, Column(name="back", type="timestamp", origin="computed",
                         expr="timestamp '2026-01-01 00:00:02' - (at - timestamp '2026-01-01 00:00:00')"))  # fmt: skip
LATE = {"watermark": Watermark(column="back", delay="0 seconds")}
BACKWARDS = "select second(window.start) as w, count(*) as n from input group by window(back, '4 seconds')"
SHADOWED = "select k, sum(w) as total from (select k, v + 1 as x, x * 2 as w from input) group by k"
STRUCTS = "select k, max(struct(*)).v as v from input group by k"
TIMED_TABLE = {"relation": "{schema}.timed"}
CHANGED = {"relation": "{schema}.latest", "rows": "upsert", "keys": ("k",)}
FOLLOWS = {"sql": "select k as id, v from input", "view": "input", "keys": ("k",), "whole": "so"}
SUMS = "select i.k, sum(v * f.times) as total from input i join {schema}.factor f on i.k = f.k group by i.k"
TEXT = tuple(c.model_copy(update={"type": "string"}) if c.name == "v" else c for c in COLUMNS)
HELD = COUNTS.replace(" from", ", (sum(v) > 0) as _penstock_kept from")
KEPT = {
    "sql": "select * except (_penstock_kept) from changed_groups where _penstock_kept", "view": "changed_groups",
    "keys": ("k",), "whole": f"{COUNTS} having sum(v) > 0",
}  # fmt: skip
CONTRACT = (("part", "int"), ("pos", "bigint"), ("k", "string"), ("v", "bigint"))
UNREAD = tuple(
    c.model_copy(update={"type": "string", "origin": "topic"}) if c.name in ("at", "part") else c for c in COLUMNS
)
PLACES = tuple(c.model_copy(update={"origin": "offset"}) if c.name == "v" else c for c in COLUMNS)
# Messages have three fields; a source knows two of them before it knows all.
TYPES = {"k": ("string", "STRING"), "v": ("long", "BIGINT"), "at": ("string", "STRING")}
READ_AS = tuple(Column(name=name, type=kind, origin=f"value.{name}", read_as=kind) for name, (_, kind) in TYPES.items())
FIELDS_OF_AVRO = [
    json.dumps({"type": "record", "name": "Input", "fields": [{"name": n, "type": TYPES[n][0]} for n in names]})
    for names in (("k", "v"), ("k", "v", "at"))
]
FIELDS_OF_PROTOBUF = [
    f'syntax = "proto3"; message Input {{ string k = 1; int64 v = 2; {more} }}' for more in ("", "string at = 3;")
]


def in_avro(known: int) -> dict[str, Any]:
    types = (MessageType(name="Input", content=FIELDS_OF_AVRO[known]),)
    schema = Schema(framed=False, types=types, written=FIELDS_OF_AVRO[1])
    return {"topic": "{in_avro}", "value_format": "avro", "value_schema": schema, "columns": READ_AS[: 2 + known]}


def in_protobuf(known: int) -> dict[str, Any]:
    types = (MessageType(name="Input", content=compiled(FIELDS_OF_PROTOBUF[known], "input.proto", {}).encoded),)
    schema = Schema(framed=False, types=types)
    return {"topic": "{in_protobuf}", "value_format": "protobuf", "value_schema": schema,
            "columns": READ_AS[: 2 + known]}  # fmt: skip


CASES = [
    Case("a comment", "NO-OP", {"sql": f"-- said better\n{ROWS}"}, rows=BOTH),
    Case("a comment on state", "NO-OP", {"sql": f"{COUNTS} -- so"}, **STATE, rows=OF_COUNTS),
    Case(
        "a comment above an aggregate", "NO-OP",
        {"sql": f"\n{HELD}", "follow": {**KEPT, "sql": f"\n{KEPT['sql']}", "whole": f"-- so\n{KEPT['whole']}"}},
        sql=HELD, keys=("k",), stateful=True, spec={"follow": KEPT},
        rows=[row for row in OF_COUNTS if row[2] > 0],
    ),
    Case("the size of small batches", "HOT", {"small_batch_rows": 0}, rows=BOTH),
    Case(
        "upkeep and the model's file", "HOT",
        {"maintenance": OwnMaintenance(every="2 hours"), "path": "models/elsewhere.sql"}, rows=BOTH,
    ),
    Case("where a source starts", "HOT", {"source": {"starting": "latest"}}, **STATE, rows=OF_COUNTS),
    Case(
        "what only a new stream or a new topic looks at", "HOT",
        {"unique_id": "model.rules.other", "source": {"backfill": True},
         "publish": {"topic": "{schema}-parts", "partitions": 4}},
        spec={"publish": {"topic": "{schema}-parts"}}, rows=BOTH,
    ),
    Case(
        "what would become of other columns", "HOT", {"output": {"on_schema_change": "append_new_columns"}}, rows=BOTH,
    ),
    Case("the trigger", "RESTART", {"trigger": FASTER.model_copy(update={"buffer_limit": 2})}, rows=BOTH),
    Case("the trigger of state", "RESTART", {"trigger": FASTER}, **STATE, rows=OF_COUNTS),
    Case(
        "the SQL without state", "RESTART", {"sql": "select part, pos, k, v * 10 as v from input where v <> 2"},
        rows=listed(HISTORY) + [(p, o, k, v * 10) for p, o, k, v in BOTH[len(HISTORY) :] if v != 2],
    ),
    Case("shuffle partitions without state", "RESTART", {"shuffle_partitions": 3}, rows=BOTH),
    Case("a constraint", "RESTART", {"checks": (("sane", "v > -10"),)}, rows=BOTH, reason="constraints: sane"),
    Case("a column that nobody reads", "RESTART", {"source": {"columns": NEW_COLUMN}}, **STATE, rows=OF_COUNTS),
    Case("what becomes of bad records", "RESTART", {"source": {"on_bad_record": "skip"}}, **STATE, rows=OF_COUNTS),
    Case(
        "more partitions", "RESTART", {"source": {"partitions": (0, 1)}}, source={"partitions": (0,)}, rows=BOTH,
        reason="partitions",
    ),
    Case(
        "all partitions", "RESTART", {"source": {"partitions": ()}}, source={"partitions": (0,)}, rows=BOTH,
        reason="partitions",
    ),
    Case(
        "the contract", "RESTART", {"output": {"contract": CONTRACT}}, rows=BOTH, reason="the contract changed",
    ),
    Case(
        "what no longer becomes of other columns", "RESTART", {"output": {"on_schema_change": "fail"}},
        spec={"output": {"on_schema_change": "append_new_columns"}}, rows=BOTH, reason="on_schema_change",
    ),
    Case(
        "the type of a column without state", "RESTART", {"source": {"columns": TEXT}},
        sql=ROWS.replace(" v ", " cast(v as bigint) as v "), rows=BOTH, reason="type of",
    ),
    Case(
        "the origin of a column without state", "RESTART", {"source": {"columns": PLACES}},
        rows=BOTH[: len(HISTORY)] + [(p, o, k, o) for p, o, k, _ in BOTH[len(HISTORY) :]], reason="origin of",
    ),
    Case(
        "how messages are decoded without state", "RESTART", {"source": {"value_options": (("delimiter", ":"),)}},
        sql="select one, two is not null as split from input", source={"columns": FIELDS, "value_format": "csv"},
        rows=[(f'{{"k": "{k}"', True) for _, k, _, _ in HISTORY] + [('{"k"', True)] * len(LATER),
        reason="value format",
    ),
    Case(
        "a pattern that has the topic of a state", "RESTART",
        {"source": {"topic": None, "topic_pattern": "{topic}|{other}"}}, **STATE, rows=counted(ALL * 2), reason="topic",
    ),
    Case(
        "the type and the origin of columns that no state reads", "RESTART", {"source": {"columns": UNREAD}}, **STATE,
        rows=OF_COUNTS, reason="type of",
    ),
    Case(
        "the order of columns that a state takes by their names", "RESTART", {"source": {"columns": COLUMNS[::-1]}},
        **STATE, rows=OF_COUNTS, reason="columns of",
    ),
    Case(
        "how keys are decoded without state", "RESTART", {"source": {"key_options": (("delimiter", ":"),)}},
        sql="select one, two from input", source=OF_KEYS,
        rows=[(f"{k}:{p}", f"{p}") for p, k, _, _ in HISTORY] + [(k, f"{p},{p}") for p, k, _, _ in LATER],
        reason="key format",
    ),
    Case(
        "the format of keys of which there is no column", "RESTART", {"source": {"key_format": "csv"}}, **STATE,
        rows=OF_COUNTS, reason="key format",
    ),
    Case(
        "the format of values of which there is no column", "RESTART", {"source": {"value_format": "csv"}},
        sql=KEYS, keys=("one",), stateful=True, source=OF_KEYS,
        rows=[(f"{k}:{p}", sum(r[:2] == (p, k) for r in ALL)) for p, k in sorted({r[:2] for r in ALL})],
        reason="value format",
    ),
    Case(
        "the schema of keys, and where schemas are", "RESTART",
        {"source": {"key_schema": Schema(framed=False, types=(MessageType(content='"bytes"'),)),
                    "registry": (("url", "http://other"),)}},
        **STATE, rows=OF_COUNTS, reason="input's keys",
        source={"key_format": "avro", "key_schema": Schema(framed=False, types=(MessageType(content='"string"'),)),
                "registry": (("url", "http://one"),)},
    ),
    Case(
        "a field more of values in Avro, and where schemas are", "RESTART",
        {"source": {**in_avro(1), "registry": (("url", "http://other"),)}}, **STATE,
        source={**in_avro(0), "registry": (("url", "http://one"),)}, rows=OF_COUNTS, reason="input's values",
    ),
    Case(
        "a field more of values in Protobuf", "RESTART", {"source": in_protobuf(1)}, **STATE, source=in_protobuf(0),
        rows=OF_COUNTS, reason="input's values",
    ),
    Case(
        # With the old one the first window would still be open.
        "the delay of a table's watermark", "RESTART",
        {"upstream": {**TIMED_TABLE, "watermark": Watermark(column="at", delay="3 seconds")}}, sql=WINDOWS,
        stateful=True, spec={"upstream": {**TIMED_TABLE, "watermark": Watermark(column="at", delay="1 hour")}},
        rows=[(0, 4)], reason="watermark delay",
    ),
    Case(
        "a watermark of groups that are kept", "RESTART", {"source": LATE}, **STATE, source={"columns": BACK},
        spec={"trigger": FASTER}, rows=OF_COUNTS, reason="watermark",
    ),
    Case(
        "groups that are kept without a watermark", "RESTART", {"source": {"watermark": None}}, **STATE,
        source={"columns": BACK, **LATE}, spec={"trigger": FASTER}, rows=OF_COUNTS, reason="watermark",
    ),
    Case(
        # The old watermark is ahead of all that comes.
        "another watermark of groups that are kept", "RESTART", {"source": LATE}, **STATE,
        source={"columns": (*BACK, AHEAD[-1]), "watermark": Watermark(column="ahead", delay="0 seconds")},
        spec={"trigger": FASTER}, rows=OF_COUNTS, reason="watermark",
    ),
    Case(
        "a watermark of groups over a table", "RESTART", {"upstream": {**TIMED_TABLE, **LATE}}, **STATE,
        spec={"upstream": TIMED_TABLE}, rows=OF_COUNTS, reason="watermark",
    ),
    Case(
        "a pattern that has the topic of groups with a watermark", "RESTART",
        {"source": {"topic": None, "topic_pattern": "{topic}|{other}"}}, **STATE, source=EXACT,
        spec={"trigger": FASTER}, rows=counted(ALL * 2), reason="topic",
    ),
    Case(
        "inputs in another order", "RESTART", {"turned": True}, sql=BOTH_WAYS, spec={"second": {}}, rows=BOTH * 2,
        reason="listed in another order",
    ),
    Case(
        "a new function", "RESTART", {"sql": WEIGHED, "functions": TIMES[10]},
        rows=[(p, o, k, v * (1 if at < len(HISTORY) else 10)) for at, (p, o, k, v) in enumerate(BOTH)],
        reason=".weigh is new",
    ),
    Case(
        "a function that is gone", "RESTART", {"sql": ROWS, "functions": ()}, sql=WEIGHED,
        spec={"functions": TIMES[10]},
        rows=[(p, o, k, v * (10 if at < len(HISTORY) else 1)) for at, (p, o, k, v) in enumerate(BOTH)],
        reason=".weigh is gone",
    ),
    Case(
        # Rows that do not change stay as they were made.
        "what is made of changes", "RESTART",
        {"follow": {**FOLLOWS, "sql": "select k as id, v * 10 as v from input"}}, sql="select * from input",
        keys=("id",), spec={"upstream": CHANGED, "follow": FOLLOWS}, begun=3,
        rows=[("a", 50), ("b", 20), ("c", -4), ("d", 70)], reason="the SQL changed",
    ),
    Case(
        "the key in the value of what is published", "RESTART",
        {"publish": {"topic": "{schema}-bare", "key": ("k",), "key_in_value": False}},
        spec={"publish": {"topic": "{schema}-bare", "key": ("k",)}}, rows=BOTH, published={"{schema}-bare": ALL},
        reason="publish.key_in_value",
    ),
    Case(
        # With the old one the first window would still be open.
        "a watermark's delay", "RESTART", {"source": EXACT}, sql=WINDOWS, stateful=True,
        source={"watermark": Watermark(column="at", delay="1 hour")}, rows=[(0, 4)],
    ),
    Case(
        "how the broker is reached", "RESTART",
        {"source": {"bootstrap": "{broker}", "options": (("client.id", "rules"),)}}, **STATE, rows=OF_COUNTS,
        reason="bootstrap.servers",
    ),
    Case(
        "a watermark's column without state", "RESTART",
        {"source": {"watermark": Watermark(column="ahead", delay="1 second")}},
        source={"columns": AHEAD, "watermark": Watermark(column="at", delay="1 second")}, rows=BOTH,
    ),
    Case(
        "a function", "RESTART", {"functions": TIMES[100]}, sql=WEIGHED, spec={"functions": TIMES[10]},
        rows=[(p, o, k, v * (10 if at < len(HISTORY) else 100)) for at, (p, o, k, v) in enumerate(BOTH)],
        reason=".weigh changed",
    ),
    Case("columns that nobody reads are gone", "RESTART", {"source": {"columns": USED}}, **STATE, rows=OF_COUNTS),
    Case(
        "a pattern that has the topic", "RESTART", {"source": {"topic": None, "topic_pattern": "{topic}|{other}"}},
        rows=BOTH * 2, reason="topic",
    ),
    Case(
        "what is expected of rows", "RESTART",
        {"expectations": (Expectation(name="small", expect="v < 7", on_violation="drop"),)}, rows=BOTH[:-1],
        reason="expectations: small",
    ),
    Case(
        "a table that is joined", "RESTART", {"sql": WEIGHTED, "table": "{schema}.factor"},
        rows=listed(HISTORY) + [(p, o, k, v * 1000) for p, o, k, v in BOTH[len(HISTORY) :] if k == "a"],
        reason="factor is new",
    ),
    Case(
        "a joined table that is gone", "RESTART", {"sql": ROWS, "table": None}, sql=WEIGHTED,
        spec={"table": "{schema}.factor"},
        rows=[(p, o, k, v * 1000) for p, o, k, v in listed(HISTORY) if k == "a"] + BOTH[len(HISTORY) :],
        reason="factor is gone",
    ),
    Case(
        "the format of what is published", "RESTART", {"publish": {"topic": "{schema}-form", "value_format": "avro"}},
        spec={"publish": {"topic": "{schema}-form"}}, rows=BOTH, published={"{schema}-form": ALL}, avro=LATER,
        reason="publish.value_format json -> avro",
    ),
    Case(
        "where and how rows are published", "RESTART",
        {"publish": {"topic": "{schema}-new", "key": ("part",), "key_format": "json", "delivery": "at_least_once"}},
        spec={"publish": {"topic": "{schema}-old", "key": ("k",)}}, rows=BOTH,
        published={"{schema}-old": HISTORY, "{schema}-new": LATER},
    ),
    Case(
        "rows that are no longer published", "RESTART", {"publish": None},
        spec={"publish": {"topic": "{schema}-left"}}, rows=BOTH, published={"{schema}-left": HISTORY},
    ),
    Case(
        "anything of a full refresh", "RESTART", {"sql": "select k, v from input order by v desc limit 2"},
        sql="select k, v from input order by v limit 1", spec={"replace": True}, rows=[("a", 5), ("d", 7)],
    ),
    Case(
        "the SQL of a state", "REBUILD", {"sql": COUNTS.replace("group", "where v > 0 group")}, **STATE,
        rows=POSITIVE, forced=WRONG, reason="the SQL of a stateful query changed",
    ),
    Case(
        "what is grouped by", "REBUILD", {"sql": COUNTS.replace("group by k", "group by k, part")}, **STATE,
        forced=FAILS, says=KEY_SCHEMA, reason="the SQL of a stateful query changed",
    ),
    Case(
        "a query that begins to keep state", "REBUILD",
        {"sql": "select k, sum(v) as v from input group by k", "stateful": True},
        sql="select k, v from input", keys=("k",), forced=FAILS, says="the state directory is empty",
        reason="the query keeps state now",
    ),
    Case("shuffle partitions of a state", "REBUILD", {"shuffle_partitions": 3}, **STATE, forced=IGNORED),
    Case(
        "the type of a column in the state", "REBUILD", {"source": {"columns": TEXT}},
        sql="select k, cast(max(v) as string) as m from input group by k", keys=("k",), stateful=True,
        forced=FAILS, says=VALUE_SCHEMA, reason="type of",
    ),
    Case(
        "what is told apart", "REBUILD", {"deduplicate_by": ("k", "v")}, stateful=True, spec={"deduplicate_by": ("k",)},
        forced=FAILS, says=KEY_SCHEMA, reason="deduplicate_by k -> k, v",
    ),
    Case(
        "a watermark for what is told apart", "REBUILD",
        {"source": {"watermark": Watermark(column="at", delay="1 hour")}}, sql="select k, v, at from input",
        stateful=True, spec={"deduplicate_by": ("k",)}, forced=FAILS, says="stateful operator name does not match",
        reason="watermark",
    ),
    Case(
        # Nobody asks again for groups that do not change.
        "a filter above an aggregate", "REBUILD",
        {"follow": {**KEPT, "sql": KEPT["sql"].replace("where", "where not")}}, sql=HELD, keys=("k",), stateful=True,
        spec={"follow": KEPT}, rows=[row for row in OF_COUNTS if row[2] <= 0], forced=WRONG, reason="the SQL changed",
    ),
    Case(
        "how a state's keys are decoded", "REBUILD", {"source": {"key_options": (("delimiter", ":"),)}}, sql=KEYS,
        keys=("one",), stateful=True, source=OF_KEYS, rows=[row[:2] for row in OF_COUNTS], forced=WRONG,
        reason="key format",
    ),
    Case(
        "the place of a column of CSV in a state", "REBUILD", {"source": {"columns": PARTS[::-1]}}, sql=KEYS,
        keys=("one",), stateful=True, source=OF_KEYS,
        rows=[(f"{p}", sum(row[0] == p for row in ALL)) for p in (0, 1)], forced=WRONG, reason="(field 1) ->",
    ),
    Case(
        "a column with the name of an alias", "REBUILD",
        {"source": {"columns": (*COLUMNS, Column(name="x", type="bigint", origin="offset"))}}, sql=SHADOWED,
        keys=("k",), stateful=True,
        rows=[(k, sum(2 * row[1] for row in BOTH if row[2] == k)) for k, _, _ in OF_COUNTS], forced=WRONG,
        reason="input.x is new",
    ),
    Case(
        "a column more that a state takes with all others", "REBUILD", {"source": {"columns": COLUMNS}},
        sql=STRUCTS, keys=("k",), stateful=True, source={"columns": (*USED, *COLUMNS[3:])},
        forced=FAILS, says=VALUE_SCHEMA, reason="input.at is new",
    ),
    Case(
        # What was late has to be counted now, with what is no longer there.
        "windows without a watermark", "REBUILD", {"source": {"watermark": None}}, sql=BACKWARDS, keys=("w",),
        stateful=True, source={"columns": BACK, **LATE}, spec={"trigger": FASTER}, rows=[(0, 3), (52, 1), (56, 4)],
        forced=WRONG, reason="back -> none",
    ),
    Case(
        "a watermark for windows", "REBUILD", {"source": LATE}, sql=BACKWARDS, keys=("w",), stateful=True,
        source={"columns": BACK}, spec={"trigger": FASTER}, rows=[(0, 3), (56, 1)], forced=WRONG, reason="none -> back",
    ),
    Case(
        "a new function of a state", "REBUILD",
        {"sql": COUNTS.replace("sum(v)", "sum(weigh(v))"), "functions": TIMES[10]}, **STATE,
        rows=[(k, n, total * 10) for k, n, total in OF_COUNTS], forced=WRONG, reason=".weigh is new",
    ),
    Case(
        "a table for a topic", "REBUILD", {"publish": {"topic": "{schema}-first"}},
        spec={"publish": {"topic": "{schema}-first", "table": False}}, forced=FAILS, says="cannot be found",
        reason="the table is new",
    ),
    Case(
        "a full refresh in place of a state", "REBUILD", {"replace": True, "stateful": False}, **STATE, forced=FAILS,
        says="definition", reason="output mode upsert -> replace",
    ),
    Case(
        # What the other topic has of the first window is late by then.
        "a pattern that has the topic of windows", "REBUILD",
        {"source": {"topic": None, "topic_pattern": "{topic}|{other}"}}, sql=WINDOWS, keys=("w",), stateful=True,
        source=EXACT, rows=[(0, 8), (4, 8)], forced=WRONG, reason="topic",
    ),
    Case(
        "the origin of a column in a state", "REBUILD", {"source": {"columns": PLACES}}, **STATE,
        rows=[(k, n, sum(row[1] for row in BOTH if row[2] == k)) for k, n, _ in OF_COUNTS], forced=WRONG,
        reason="origin of",
    ),
    Case(
        "the order of columns that a state takes as they come", "REBUILD",
        {"source": {"columns": (COLUMNS[1], COLUMNS[0], *COLUMNS[2:])}}, sql=STRUCTS, keys=("k",), stateful=True,
        forced=FAILS, says=VALUE_SCHEMA, reason="columns of",
    ),
    Case(
        # The table would stay, with the rows of before.
        "a topic without its table", "REBUILD", {"publish": {"topic": "{schema}-only", "table": False}},
        spec={"publish": {"topic": "{schema}-only"}}, rows=BOTH, forced=WRONG, reason="the table is gone",
    ),
    Case(
        # The old watermark stands an hour ahead of the new column: all that comes would be late.
        "a watermark's column", "REBUILD", {"source": {"watermark": Watermark(column="at", delay="1 second")}},
        sql=WINDOWS, keys=("w",), stateful=True,
        source={"columns": AHEAD, "watermark": Watermark(column="ahead", delay="1 second")},
        rows=[(0, 4), (4, 4)], forced=WRONG, reason="ahead -> at",
    ),
    Case(
        "the column of a table's watermark", "REBUILD",
        {"upstream": {**TIMED_TABLE, "watermark": Watermark(column="at", delay="1 second")}}, sql=WINDOWS, keys=("w",),
        stateful=True, spec={"upstream": {**TIMED_TABLE, "watermark": Watermark(column="ahead", delay="1 second")}},
        rows=[(0, 4), (4, 4)], forced=WRONG, reason="ahead -> at",
    ),
    Case(
        "a watermark of a table whose rows are told apart", "REBUILD",
        {"upstream": {**TIMED_TABLE, "watermark": Watermark(column="at", delay="1 hour")}},
        sql="select k, v, at from input", stateful=True,
        spec={"upstream": TIMED_TABLE, "deduplicate_by": ("k",)}, forced=FAILS,
        says="stateful operator name does not match", reason="none -> at",
    ),
    Case(
        "a function of a state", "REBUILD", {"functions": TIMES[100]},
        sql=COUNTS.replace("sum(v)", "sum(weigh(v))"), keys=("k",), stateful=True,
        spec={"functions": TIMES[10]}, rows=[(k, n, total * 100) for k, n, total in OF_COUNTS],
        forced=WRONG, reason=".weigh changed",
    ),
    Case(
        "another topic", "REBUILD", {"source": {"topic": "{other}"}}, forced=FAILS, says="Partitions Set",
        reason="topic",
    ),
    Case(
        "fewer partitions", "REBUILD", {"source": {"partitions": (0,)}}, forced=FAILS, says="Partitions Set",
        reason="partitions",
    ),
    Case(
        "rows that are replaced, not appended", "REBUILD", {"keys": ("k",)}, sql=OF_ONE,
        rows=LAST, forced=WRONG, reason="output mode append -> upsert",
    ),
    Case(
        "another key", "REBUILD", {"keys": ("k", "v")}, sql="select k, v from input", keys=("k",),
        rows=sorted({(k, v) for _, k, v, _ in ALL}), forced=WRONG, reason="key (k) -> (k, v)",
    ),
    Case(
        "columns of the result", "REBUILD", {"sql": "select part, pos, k, v, at from input"},
        forced=FAILS, says="number of fields", reason="column at is new",
    ),
    Case(
        "the order of the inputs", "REBUILD",
        {"sql": f"{ROWS.replace('input', 'second')} union all {ROWS}"},
        sql=BOTH_WAYS, spec={"second": {}}, forced=FAILS, says="Partitions Set",
        reason="the order in which the query reads its streams changed",
    ),
    Case(
        "one more input", "REBUILD", {"sql": BOTH_WAYS, "second": {}}, forced=FAILS, says="sources", reason="is new",
    ),
    Case(
        "one input less", "REBUILD", {"sql": ROWS, "second": None}, sql=BOTH_WAYS, spec={"second": {}}, forced=FAILS,
        says="sources", reason="second is gone",
    ),
    Case(
        "a table in place of a topic", "REBUILD", {"upstream": {"relation": "{schema}.s0"}},
        source={"relation": "{schema}.s0"},
        forced=FAILS, says="sourceVersion", reason="s0 kafka -> table_stream",
    ),
    Case(
        "the keys of a join", "REBUILD", {"sql": PAIRS.replace(" and i.part = s.part", "")}, sql=PAIRS, stateful=True,
        spec={"second": {}}, forced=FAILS, says=KEY_SCHEMA, reason="the SQL of a stateful query changed",
    ),
    Case(
        "the kind of a join", "REBUILD", {"sql": TIMED.replace(" join", " left join")}, sql=TIMED, stateful=True,
        source=EXACT, spec={"second": EXACT}, forced=FAILS, says=VALUE_SCHEMA,
        reason="the SQL of a stateful query changed",
    ),
    Case(
        "another aggregate", "REBUILD", {"sql": COUNTS.replace("sum(v)", "min(v)")}, **STATE,
        rows=[(k, n, min(row[2] for row in ALL if row[1] == k)) for k, n, _ in OF_COUNTS], forced=WRONG,
        reason="the SQL of a stateful query changed",
    ),
    Case(
        "one more aggregate", "REBUILD", {"sql": COUNTS.replace("sum(v)", "sum(v) + max(v) - max(v)")}, **STATE,
        forced=FAILS, says=VALUE_SCHEMA, reason="the SQL of a stateful query changed",
    ),
    Case(
        # By Spark's writer, so that it reads alone: a shared reading would not look at the old state.
        "a query that no longer keeps state", "REBUILD", {"sql": "select k, v from input", "stateful": False},
        sql="select k, sum(v * 10) as v from input group by k", keys=("k",), stateful=True,
        spec={"small_batch_rows": 0}, forced=FAILS, says="stateful operator name does not match",
        reason="the query keeps no state any more",
    ),
    Case(
        "a stream in place of a full refresh", "REBUILD", {"keys": ("k",), "stateful": True}, sql=COUNTS,
        spec={"replace": True}, forced=FAILS, says="inconsistent state", reason="output mode replace -> upsert",
    ),
    Case(
        "windows that are written once", "REBUILD", {"appends": True}, sql=WINDOWS, keys=("w",),
        stateful=True, source=EXACT, rows=[(0, 4)], forced=WRONG, reason="output mode upsert -> append",
    ),
    Case(
        "how a state's messages are decoded", "REBUILD", {"source": {"value_options": (("delimiter", ":"),)}},
        sql="select one, count(*) as n from input group by one", keys=("one",), stateful=True,
        source={"columns": FIELDS, "value_format": "csv"}, rows=[('{"k"', len(ALL))], forced=WRONG,
        reason="value format",
    ),
    Case(
        "a column that a state takes with all others", "REBUILD", {"source": {"columns": (*USED, *COLUMNS[3:])}},
        sql=STRUCTS, keys=("k",), stateful=True, forced=FAILS, says=VALUE_SCHEMA, reason="input.at is gone",
    ),
    Case(
        "another table that a state joins", "REBUILD",
        {"sql": SUMS.replace("factor", "unit"), "table": "{schema}.unit"}, sql=SUMS, keys=("k",), stateful=True,
        spec={"table": "{schema}.factor"}, rows=[("a", 10)], forced=WRONG, reason="factor is gone",
    ),
    Case(
        "a full refresh in place of a stream", "REBUILD", {"replace": True}, forced=FAILS, says="definition",
        reason="output mode append -> replace",
    ),
    Case(
        "how the rows of a table above change", "REBUILD",
        {"upstream": {"relation": "{schema}.s0", "rows": "upsert", "keys": ("part", "pos")},
         "sql": "select * from input", "follow": {**FOLLOWS, "sql": ROWS, "keys": ("part", "pos")}},
        keys=("part", "pos"), spec={"upstream": {"relation": "{schema}.s0"}}, begun=len(HISTORY), forced=FAILS,
        says="change data was not", reason="how {schema}.s0 changes append -> upsert",
    ),
    Case(
        # The rows of the old keys stay.
        "the key of a table above", "REBUILD",
        {"upstream": {**CHANGED, "keys": ("p",)},
         "follow": {**FOLLOWS, "sql": "select p as id, v from input", "keys": ("p",)}},
        sql="select * from input", keys=("id",), spec={"upstream": CHANGED, "follow": FOLLOWS}, begun=3,
        rows=[("0", 7), ("1", 2)], forced=WRONG, shows=("1", 2), reason="key of {schema}.latest (k) -> (p)",
    ),
]  # fmt: skip
TOGETHER = 13  # cases on a bench


class Bench:
    """The streams of some cases, on one engine."""

    def __init__(self, platform: Platform, cases: list[Case], registry: Callable[[], str]) -> None:
        self.platform = platform
        self.registry = registry
        self.cases = cases
        self.schema = f"p_{uuid.uuid4().hex[:8]}"
        self.topics = {name: f"rules-{uuid.uuid4().hex[:8]}" for name in ("topic", "other", "in_avro", "in_protobuf")}
        self.topic, self.other = self.topics["topic"], self.topics["other"]
        create_topics(platform.bootstrap, dict.fromkeys(self.topics.values(), 2))
        self.names = {"schema": self.schema, "broker": platform.bootstrap, **self.topics}
        self.refused: dict[str, str] = {}
        self.verdicts: dict[str, str] = {}
        self.told: dict[str, str] = {}  # why
        self.runs: dict[str, str | None] = {}
        self.checkpoints: dict[str, str] = {}
        self.errors: dict[str, str] = {}  # of what was forced and failed
        self.specs = {case.name: self._spec(case, number) for number, case in enumerate(CASES)}
        self.above = [
            self._table("latest", "select k, cast(part as string) as p, v from input", COLUMNS, ("k",)),
            self._table("timed", "select k, v, at, back, ahead from input", (*BACK, AHEAD[-1])),
        ]
        self.changed = {case.name: self._changed(case) for case in CASES}

    def _input(self, view: str, topic: str, changes: dict[str, Any]) -> KafkaInput:
        made = KafkaInput(view=view, relation=f"{self.schema}_raw.{view}", topic=topic, columns=COLUMNS)
        return made.model_copy(update=changes)

    def _named(self, settings: dict[str, Any]) -> dict[str, Any]:
        """With the schema, the topics and the broker of this run."""

        def named(value: Any) -> Any:
            if isinstance(value, str):
                for name, text in self.names.items():
                    value = value.replace(f"{{{name}}}", text)
            elif isinstance(value, dict):
                return {key: named(each) for key, each in value.items()}
            elif isinstance(value, tuple):
                return tuple(named(each) for each in value)
            return value

        found: dict[str, Any] = named(settings)
        made = {"publish": Publish, "follow": Follow}
        return found | {name: kind(**found[name]) for name, kind in made.items() if found.get(name)}

    def _spec(self, case: Case, number: int) -> StreamSpec:
        name = f"{self.schema}.s{number}"
        own = self._named({**case.spec, "sql": case.sql})
        mode = OutputMode.APPEND if case.keys is None else OutputMode.UPSERT
        mode = OutputMode.REPLACE if own.pop("replace", False) else mode
        inputs: list[Input] = [self._input("input", self.topic, self._named(case.source))]
        if "upstream" in own:
            inputs = [TableStreamInput(view="input", **own.pop("upstream"))]
        if "second" in own:
            inputs.append(self._input("second", self.other, own.pop("second")))
        if "table" in own:
            inputs.append(TableInput(relation=own.pop("table")))
        return StreamSpec(
            name=name, unique_id=f"model.rules.s{number}", path=f"models/s{number}.sql",
            stateful=case.stateful, inputs=tuple(inputs),
            output=Output(relation=name, mode=mode, keys=case.keys or (), **own.pop("output", {})), **own,
        )  # fmt: skip

    def _table(self, name: str, sql: str, columns: tuple[Column, ...], keys: tuple[str, ...] = ()) -> StreamSpec:
        """A table for those who follow its new rows, or its changes."""
        name = f"{self.schema}.{name}"
        return StreamSpec(
            name=name, unique_id=f"model.rules.{name}", path=f"models/{name}.sql", stateful=False, sql=sql,
            inputs=(self._input("input", self.topic, {"columns": columns}),),
            output=Output(relation=name, mode=OutputMode.UPSERT if keys else OutputMode.APPEND, keys=keys),
        )  # fmt: skip

    def _changed(self, case: Case) -> StreamSpec:
        spec, change = self.specs[case.name], self._named(case.change)
        first, *more = spec.inputs
        inputs: list[Input] = [first.model_copy(update=change.pop("source", {})), *more]
        if "upstream" in change:
            inputs = [TableStreamInput(view="input", **change.pop("upstream"))]
        if "second" in change:
            second = change.pop("second")
            inputs = [inputs[0]] if second is None else [*inputs, self._input("second", self.other, second)]
        if "table" in change:
            table = change.pop("table")
            inputs = [each for each in inputs if each.kind != "table"]
            inputs += [TableInput(relation=table)] if table else []
        if change.pop("turned", False):
            inputs = inputs[::-1]
        output: dict[str, Any] = {}
        if change.pop("replace", False):
            output |= {"keys": (), "mode": OutputMode.REPLACE}
        if change.pop("appends", False):
            output |= {"keys": (), "mode": OutputMode.APPEND}
        if "keys" in change:
            output |= {"keys": change.pop("keys"), "mode": OutputMode.UPSERT}
        if "checks" in change:
            output |= {"checks": change.pop("checks")}
        output |= change.pop("output", {})
        made = {"inputs": tuple(inputs), "output": spec.output.model_copy(update=output)}
        return spec.model_copy(update={**change, **made})

    def send(self, rows: list[tuple[int, str, int, int]]) -> None:
        producer = Producer(client_config(self.platform.bootstrap) | {"enable.idempotence": True})
        avro = fastavro.parse_schema(json.loads(FIELDS_OF_AVRO[1]))
        described = ProtobufSchema.read(in_protobuf(1)["value_schema"].types[0].content).message("Input")
        protobuf = GetMessageClass(described)
        for part, k, v, second in rows:
            at = f"2026-01-01T00:00:0{second}Z"
            encoded = io.BytesIO()
            fastavro.schemaless_writer(encoded, avro, {"k": k, "v": v, "at": at})
            plain = f'{{"k": "{k}", "v": {v}, "at": "{at}"}}'.encode()
            values = {
                "topic": plain, "other": plain, "in_avro": encoded.getvalue(),
                "in_protobuf": protobuf(k=k, v=v, at=at).SerializeToString(),
            }  # fmt: skip
            for name, value in values.items():
                producer.produce(self.topics[name], key=f"{k}:{part},{part}", value=value, partition=part)
        assert producer.flush(30) == 0

    def rows(self, case: Case) -> list[tuple[Any, ...]]:
        found = self.platform.sql(f"select * from {self.specs[case.name].name}")
        if case.sql == WINDOWS:
            found = [(start.second, n) for start, n in found]
        return sorted(found, key=str)

    def published(self, topic: str, *, avro: bool = False) -> list[int]:
        """The values in a topic; or only those in Avro, whose messages begin with a zero."""
        name = topic.replace("{schema}", self.schema)
        context = SerializationContext(name, MessageField.VALUE)

        def decoded(raw: bytes | None) -> Any:
            assert raw is not None
            return self.avro(raw, context) if raw[:1] == b"\0" else None if avro else json.loads(raw)

        return sorted(
            each.value["v"] for each in read_topic(self.platform.bootstrap, name, value=decoded) if each.value
        )

    @cached_property
    def avro(self) -> AvroDeserializer:
        return AvroDeserializer(SchemaRegistryClient({"url": self.registry()}))

    def read(self, name: str) -> int:
        """Messages, or rows of a table, that the stream has read since it was deployed first."""
        return sum(batch.rows_in for batch in self.platform.store.progress(name, 1000))

    def expected_in(self, spec: StreamSpec, messages: list[Any]) -> int:
        inputs = [each for each in spec.inputs if isinstance(each, KafkaInput)]
        tables = [each for each in spec.inputs if isinstance(each, TableStreamInput) and each.rows == "append"]
        return len(messages) * len(tables) + sum(
            sum(not each.partitions or row[0] in each.partitions for row in messages)
            * sum(each.reads(topic) for topic in self.topics.values())
            for each in inputs
        )

    def perform(self) -> None:
        store = self.platform.store
        self.platform.sql(f"create schema {self.schema}")
        for name, times in (("factor", 1000), ("unit", 1)):
            self.platform.sql(f"create table {self.schema}.{name} using delta as select 'a' as k, {times}L as times")
        self.send(HISTORY)
        if any(case.avro for case in self.cases):
            self.registry()
        read = {each.relation for case in self.cases for each in self.specs[case.name].inputs}
        for each in self.above:
            if each.name in read:
                self.platform.deploy(each)
        for case in self.cases:
            self.checkpoints[case.name] = self.platform.deploy(self.specs[case.name]).checkpoint
        for case in self.cases:
            self._await_history(case)
            self.runs[case.name] = store.actual(self.specs[case.name].name).run_id
        for case in self.cases:
            new = self.changed[case.name]
            try:
                made = self.platform.deploy(new)
                self.verdicts[case.name], self.told[case.name] = made.verdict, "; ".join(made.reasons)
            except PenstockError as problem:
                self.verdicts[case.name], self.refused[case.name] = "REBUILD", str(problem)
                assert store.actual(new.name).run_id == self.runs[case.name], "a refusal changes nothing"
                if case.forced:  # past the plan, on the old checkpoint
                    store.deploy(new.name, new.to_json(), new.hash, verdict="RESTART", new_checkpoint=False)
            self.end_what_failed()
        for case in self.cases:
            if self.verdicts[case.name] in ("RESTART", "REBUILD"):
                self._await_restart(case)
        self.send(LATER)

    def _await_history(self, case: Case) -> None:
        name, want = self.specs[case.name].name, self.expected_in(self.specs[case.name], HISTORY)
        full = self.specs[case.name].is_full

        def there() -> bool:
            if full or case.begun is not None:
                return len(self.rows(case)) >= (case.begun or 1)
            return self.read(name) >= want

        self.platform.until(there, f"the history of {case.name}", 120, lambda: store_actual(self.platform, name))

    def _await_restart(self, case: Case) -> None:
        store, name = self.platform.store, self.specs[case.name].name
        ended = (StreamState.RUNNING, StreamState.FAILED, StreamState.QUARANTINED)

        def there() -> bool:
            self.end_what_failed()
            found = store.actual(name)
            again = found.generation == store.desired(name).generation
            return case.name in self.errors or (again and (found.state in ended or found.failures > 0))

        self.platform.until(there, f"the restart of {case.name}", 120, lambda: store_actual(self.platform, name))

    def end_what_failed(self) -> None:
        """Keep the errors of what has to fail, and have nobody try it four times more."""
        for case in self.cases:
            name = self.specs[case.name].name
            if case.forced == FAILS and case.name not in self.errors and case.name in self.refused:
                found = self.platform.store.actual(name)
                if found.failures > 0:
                    self.errors[case.name] = str(found.error)
                    self.platform.store.set_wanted(name, Wanted.STOPPED)

    def end(self, case: Case) -> None:
        """What a test has looked at takes no more of the engine's time."""
        self.platform.store.set_wanted(self.specs[case.name].name, Wanted.STOPPED)

    def close(self) -> None:
        self.platform.endpoint()
        for want in self.platform.store.all_desired():
            if want.stream.startswith(f"{self.schema}."):
                drop_stream(self.platform.store, want.stream)


def store_actual(platform: Platform, name: str) -> Any:
    found = platform.store.actual(name)
    return found.state, found.error, found.batch_id


class Benches:
    """One bench after the other, each with some of the cases whose tests are run, in the order of the tests."""

    def __init__(self, platform: Platform, cases: list[Case], registry: Callable[[], str]) -> None:
        self.platform = platform
        self.cases = cases
        self.registry = registry
        self.open: Bench | None = None

    def of(self, case: Case) -> Bench:
        if self.open is None or case not in self.open.cases:
            self.close()
            first = self.cases.index(case)
            chosen = self.cases[first : first + TOGETHER]
            if any("upstream" in {**each.spec, **each.change} for each in chosen) and CASES[0] not in chosen:
                chosen = [CASES[0], *chosen]  # whose table is read
            self.open = Bench(self.platform, chosen, self.registry)
            self.open.perform()
        return self.open

    def close(self) -> None:
        closing, self.open = self.open, None
        if closing is not None:
            closing.close()


@pytest.fixture(scope="module")
def benches(platform: Platform, request: pytest.FixtureRequest) -> Iterator[Benches]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    cases = [item.callspec.params["case"] for item in items if hasattr(item, "callspec")]
    made = Benches(platform, cases, lambda: request.getfixturevalue("registry").url)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def bench(benches: Benches, case: Case) -> Iterator[Bench]:
    made = benches.of(case)
    yield made
    made.end(case)


def of(*verdicts: str) -> Callable[[Any], Any]:
    chosen = [case for case in CASES if case.verdict in verdicts]
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


@of("NO-OP", "HOT")
def test_the_running_query_goes_on(bench: Bench, case: Case) -> None:
    assert bench.verdicts[case.name] == case.verdict
    name = bench.specs[case.name].name
    bench.platform.until(
        lambda: bench.rows(case) == sorted(case.rows or [], key=str), "all rows", 60, lambda: bench.rows(case)
    )
    actual, want = bench.platform.store.actual(name), bench.platform.store.desired(name)
    assert (actual.run_id, want.generation) == (bench.runs[case.name], 1)
    if case.verdict == "HOT":
        assert want.spec_hash == bench.changed[case.name].hash, "the next start has it"
    if "small_batch_rows" in case.change:

        def used() -> bool:
            return "spark" in {batch.writer for batch in bench.platform.store.progress(name)}

        bench.platform.until(used, "the running query to have it, too")


@of("RESTART")
def test_a_restart_loses_no_row_and_reads_none_twice(bench: Bench, case: Case) -> None:
    assert bench.verdicts[case.name] == "RESTART"
    assert case.reason in bench.told[case.name]
    name = bench.specs[case.name].name
    bench.platform.until(
        lambda: bench.rows(case) == sorted(case.rows or [], key=str), f"the rows {case.rows}", 60,
        lambda: (bench.rows(case), bench.platform.store.actual(name)),
    )  # fmt: skip
    store = bench.platform.store
    assert store.desired(name).generation == 2
    assert store.desired(name).checkpoint_id == bench.checkpoints[case.name]
    assert store.actual(name).run_id != bench.runs[case.name]
    if not bench.specs[case.name].is_full and case.begun is None:
        read = bench.expected_in(bench.changed[case.name], ALL)
        assert bench.read(name) == read, "each message was read once, before or after the restart"
    for topic, messages in case.published.items():
        want = sorted(row[2] for row in messages)
        bench.platform.until(
            lambda topic=topic, want=want: bench.published(topic) == want, f"the messages of {topic}", 30,
            lambda topic=topic: bench.published(topic),
        )  # fmt: skip
        if case.avro:
            assert bench.published(topic, avro=True) == sorted(row[2] for row in case.avro)


@of("REBUILD")
def test_what_needs_a_rebuild_fails_or_is_wrong_on_the_old_checkpoint(bench: Bench, case: Case) -> None:
    assert "PEN-3005" in bench.refused[case.name]
    assert case.reason.replace("{schema}", bench.schema) in bench.refused[case.name]
    store, name = bench.platform.store, bench.specs[case.name].name
    if case.forced == FAILS:

        def failed() -> bool:
            bench.end_what_failed()
            return case.name in bench.errors

        bench.platform.until(failed, "its failure", 60, lambda: (store.actual(name), bench.rows(case)))
        assert case.says, "any error would do"
        assert case.says in bench.errors[case.name]
        return
    if case.shows is not None:
        bench.platform.until(
            lambda: case.shows in bench.rows(case), f"the row {case.shows}", 60,
            lambda: (store.actual(name), bench.rows(case)),
        )  # fmt: skip
        assert bench.rows(case) != sorted(case.rows or [], key=str), "the old checkpoint would have done"
        return
    deadline = time.monotonic() + 60
    want = bench.expected_in(bench.changed[case.name], ALL)
    while bench.read(name) < want and time.monotonic() < deadline:
        assert store.actual(name).failures == 0, store.actual(name).error
        time.sleep(0.05)
    assert bench.read(name) == want
    if case.forced == WRONG:
        assert bench.rows(case) != sorted(case.rows or [], key=str), "the old checkpoint would have done"
    else:
        state = bench.platform.paths.checkpoint(name, bench.checkpoints[case.name]) / "state" / "0"
        assert {each.name for each in state.iterdir() if each.name.isdigit()} == {"0", "1"}, "the setting has no effect"
    if case.forced == WRONG and bench.changed[case.name].has_table:
        # A confirmed rebuild gives what the old checkpoint could not.
        assert bench.platform.deploy(bench.changed[case.name], full_refresh=True).verdict == "REBUILD"
        bench.platform.until(
            lambda: bench.rows(case) == sorted(case.rows or [], key=str), f"the rows of {case.name}", 90,
            lambda: (bench.rows(case), store.rebuild(name)),
        )  # fmt: skip


def test_a_column_that_a_state_reads_by_name_cannot_go(platform: Platform) -> None:
    """Nothing to be rebuilt either: the query has no meaning without it."""
    bench = Bench(platform, [], str)
    old = bench.specs[CASES[1].name]
    platform.deploy(old)
    columns = tuple(column for column in COLUMNS if column.name != "v")
    without = old.model_copy(update={"inputs": (old.inputs[0].model_copy(update={"columns": columns}),)})
    for full_refresh in (False, True):
        with pytest.raises(PenstockError, match=r"PEN-1304 .*`v`"):
            platform.deploy(without, full_refresh=full_refresh)
    assert platform.store.desired(old.name).generation == 1
    bench.close()
