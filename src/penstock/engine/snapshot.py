"""The inputs of a full refresh: where topics end, which tables a query reads, and whether any of them changed.

Rules
- The ends of topics are fixed before the query is built and travel to it as a setting of its session.
- The tables are those of Spark's plan, so a table behind a view or in a subquery counts. Their versions are taken
  before the query is built: a commit that comes in between is read, and noticed again afterwards.
- A commit that changes no rows (a fence, OPTIMIZE, a comment) is no change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from penstock.checkpoint.refreshes import Offsets, TableVersion
from penstock.compiler.spec import KafkaInput
from penstock.kafka.admin import matching
from penstock.kafka.security import Value
from penstock.kafka.topic_watch import TopicWatch

BOUNDS_CONF = "spark.penstock.bounds"  # JSON: source -> {"from": offsets, "until": offsets}
_EARLIEST, _LATEST = -2, -1  # as Spark writes them


@dataclass(frozen=True)
class Topic:
    """A topic source that a refresh reads."""

    relation: str
    topic: str | None = None
    pattern: str | None = None
    partitions: tuple[int, ...] = ()
    bootstrap: str | None = None
    starting: str | int | Mapping[int, int] = "earliest"  # a number is a time in milliseconds
    security: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Broker:
    """Where a topic is, with the options to get there."""

    bootstrap: str
    options: tuple[tuple[str, Value], ...]


def topic_of(source: KafkaInput) -> Topic:
    """The topic of a source, from its beginning."""
    security = {name: value if isinstance(value, str) else value.plain() for name, value in source.options}
    return Topic(
        source.relation, source.topic, source.topic_pattern, source.partitions, source.bootstrap, security=security
    )


def ends(watch: TopicWatch, topic: Topic, broker: Broker) -> Offsets:
    """Per topic and partition, the offset that the next message will get."""
    return {name: _chosen(topic, _watermarks(watch, name, broker)[1]) for name in _names(watch, topic, broker)}


def starts(watch: TopicWatch, topic: Topic, broker: Broker) -> Offsets:
    """Where reading begins; an offset that retention has passed is where the topic begins now."""
    found: Offsets = {}
    for name in _names(watch, topic, broker):
        begin, end = (_chosen(topic, each) for each in _watermarks(watch, name, broker))
        match topic.starting:
            case "earliest":
                found[name] = begin
            case "latest":
                found[name] = end
            case int() as milliseconds:
                found[name] = watch.offsets_at(broker.bootstrap, name, broker.options, milliseconds, tuple(end))
            case Mapping() as offsets:
                named = {_EARLIEST: begin, _LATEST: end}
                found[name] = {
                    number: max(named[at][number] if at in named else at, begin[number])
                    for number, at in ((number, offsets.get(number, _EARLIEST)) for number in end)
                }
            case other:
                raise AssertionError(f"a start of '{other}'")
    return found


def is_fixed_once(topic: Topic) -> bool:
    """Whether the start depends on when it was first asked for: then the first answer holds."""
    return topic.starting == "latest" or (isinstance(topic.starting, Mapping) and _LATEST in topic.starting.values())


def kept(fixed: Offsets, begin: Offsets) -> Offsets:
    """A start that was fixed once: new partitions are read from their beginning."""
    return {
        name: {number: max(fixed.get(name, {}).get(number, 0), at) for number, at in parts.items()}
        for name, parts in begin.items()
    }


def _names(watch: TopicWatch, topic: Topic, broker: Broker) -> list[str]:
    if topic.pattern is None:
        return [str(topic.topic)]
    return matching(topic.pattern, watch.names(broker.bootstrap, broker.options))


def _watermarks(watch: TopicWatch, name: str, broker: Broker) -> tuple[dict[int, int], dict[int, int]]:
    return watch.watermarks(broker.bootstrap, name, broker.options)


def _chosen(topic: Topic, offsets: dict[int, int]) -> dict[int, int]:
    return {number: at for number, at in offsets.items() if not topic.partitions or number in topic.partitions}


# -- the query's session ----------------------------------------------------------------------------------------------


def fix_bounds(session: SparkSession, froms: Mapping[str, Offsets], untils: Mapping[str, Offsets]) -> None:
    """Let the query of this session read its topics between these offsets."""
    bounds = {name: {"from": froms[name], "until": untils[name]} for name in untils}
    session.conf.set(BOUNDS_CONF, json.dumps(bounds))


def bounds_of(session: SparkSession, topic: Topic) -> dict[str, str]:
    """Spark's options for what is read of a topic; all that it holds when nobody has fixed anything."""
    found = json.loads(session.conf.get(BOUNDS_CONF, None) or "{}").get(topic.relation)
    if found is None:
        chosen = {"subscribe": str(topic.topic)} if topic.pattern is None else {"subscribePattern": topic.pattern}
        return {**chosen, "startingOffsets": "earliest", "endingOffsets": "latest"}
    # Offsets are for each partition of the subscription, so the subscription is by partition.
    assigned = {name: sorted(int(number) for number in parts) for name, parts in found["until"].items()}
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(found["from"]),
        "endingOffsets": json.dumps(found["until"]),
    }


# -- tables -----------------------------------------------------------------------------------------------------------


def tables_of(rows: DataFrame) -> list[str]:
    """The paths of the Delta tables that a query reads."""
    plan = rows._jdf.queryExecution().analyzed()
    paths = {path for each in [plan, *_listed(plan.subqueriesAll())] for path in _paths(each)}
    return sorted(paths)


def _paths(plan: Any) -> Iterator[str]:
    for leaf in _listed(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() != "LogicalRelation" or "delta" not in leaf.relation().getClass().getName():
            continue
        yield str(leaf.relation().location().path().toString()).removeprefix("file:")


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


class TableWatch:
    """Asks tables for their version; looks at the disk for one file while nothing happens."""

    def __init__(self) -> None:
        self._tables: dict[str, DeltaTable] = {}

    def version(self, path: str) -> TableVersion:
        """The table as it is now."""
        table = self._tables.get(path)
        if table is None or not _is_newest(path, table.version()):
            table = self._tables[path] = DeltaTable(path)
        return TableVersion(str(table.metadata().id), int(table.version()))

    def changed(self, path: str, known: TableVersion) -> TableVersion | None:
        """The newer version when rows changed since the known one; None when they did not."""
        found = self.version(path)
        if found == known:
            return None
        if found.id != known.id:
            return found
        versions = range(known.version + 1, found.version + 1)
        return found if any(_changes_rows(path, version) for version in versions) else None


def _file(path: str, version: int) -> Path:
    return Path(path) / "_delta_log" / f"{version:020d}.json"


def _is_newest(path: str, version: int) -> bool:
    return _file(path, version).exists() and not _file(path, version + 1).exists()


def _changes_rows(path: str, version: int) -> bool:
    try:
        lines = _file(path, version).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return True  # cleaned up: nobody can tell any more
    actions = [json.loads(line) for line in lines]
    files = [action.get("add") or action.get("remove") or {} for action in actions]
    return any(each.get("dataChange", False) for each in files)
