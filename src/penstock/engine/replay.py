"""Replay: quarantined records that fit by now go to the streams that passed them.

Rules
- Only what a stream passed without making rows of it is given to it: what it reads now, or read once the source was
  corrected, it has from the topic (`penstock.compiler.passed`).
- Exactly once: the records of a replay are marked in the quarantine with its number, in one commit; each stream's table
  takes that number in one commit with the rows; at last the records are marked as replayed. A replay that was cut short
  is finished, under its number, before another one begins.
- A stream that keeps state, or that decodes the source otherwise than the quarantine does, is found out before anything
  is marked.
- The topic is neither read nor written.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.checkpoint.offsets import Offset, initial
from penstock.compiler.decoding import RECORD, judged, select
from penstock.compiler.messages import messages
from penstock.compiler.passed import Passed, Reading, passed
from penstock.compiler.quality import GOOD, problem
from penstock.compiler.quarantine import asks, same_definition
from penstock.compiler.spec import KafkaInput, StreamSpec, TableStreamInput
from penstock.engine import columns, failures, functions, runtime, tables
from penstock.engine.expectations import Judge
from penstock.engine.sink import TableWriter, Target, TopicWriter
from penstock.errors import Location
from penstock.errors.catalogue import QUERY_FAILED, REPLAY_OUTDATED, REPLAY_STATEFUL
from penstock.paths import ProjectPaths
from penstock.store import Desired, RebuildPhase, Store

log = logging.getLogger(__name__)

_KEY = ["topic", "partition", "offset"]
_TRIES = 5  # against appends of the quarantine's own stream
_WAITING = "replayed_at is null and replay is null"


@dataclass(frozen=True)
class _Reader:
    """A stream that reads the source with on_bad_record: quarantine."""

    want: Desired
    spec: StreamSpec
    source: KafkaInput
    missed: tuple[Passed, ...]


class Replay:
    """One replay of one quarantine."""

    def __init__(self, spark: SparkSession, store: Store, paths: ProjectPaths, token: int, want: Desired) -> None:
        self._session = runtime.own_session(spark)
        self._store = store
        self._paths = paths
        self._token = token
        source = StreamSpec.from_json(want.spec_json).inputs[0]
        assert isinstance(source, KafkaInput)
        self._source = source.model_copy(update={"rejects": False})
        self._table = tables.quoted(want.stream)
        self._id = DeltaTable(tables.location(spark, want.stream)).metadata().id

    def run(self, *, where: str | None, dry: bool) -> dict[str, Any]:
        readers = self._readers()
        given = {each.want.stream: 0 for each in readers}
        replayed = 0
        waiting = f"{_WAITING} and ({where})" if where else _WAITING
        try:
            found = self._judged(self._source, self._records(waiting)).groupBy("quality").count().collect()
        except PySparkException as wrong:
            raise QUERY_FAILED.error(f"--where {where}: {failures.sentence(wrong)}") from wrong
        counts = {row["quality"]: int(row["count"]) for row in found}
        fit, unfit = counts.get(GOOD, 0), sum(counts.values()) - counts.get(GOOD, 0)
        for each in readers:
            records = self._missed(each, self._fitting(waiting))
            missed = int(records.count())
            if missed and _keeps_more(each.spec):
                raise REPLAY_STATEFUL.error(
                    f"{each.want.stream} passed {missed} of the records before {self._source.relation} was corrected.",
                    at=Location(each.spec.path),
                )
            if missed:
                self._rows(each, records)  # what Spark has against it is said before anything is marked
            given[each.want.stream] = missed
        if dry:
            return self._told(fit, unfit, given, dry=True)
        given = dict.fromkeys(given, 0)
        for number in [*self._unfinished(), *([self._claim(waiting)] if fit or unfit else [])]:
            for each in readers:
                given[each.want.stream] += self._deliver(each, number)
            replayed += self._records(f"replay = {number} and replayed_at is null").count()
            self._patiently(
                f"update {self._table} set replayed_at = current_timestamp() "
                f"where replay = {number} and replayed_at is null"
            )
        return self._told(replayed, unfit, given, dry=False)

    def _told(self, fit: int, unfit: int, given: dict[str, int], *, dry: bool) -> dict[str, Any]:
        streams = [{"stream": stream, "records": count} for stream, count in sorted(given.items())]
        return {
            "source": self._source.relation,
            "replayed": fit,
            "still_bad": unfit,
            "streams": streams,
            "dry_run": dry,
        }

    # -- who reads the source, and what did they pass ------------------------------------------------------------------
    def _readers(self) -> list[_Reader]:
        found = []
        for want in self._store.all_desired():
            spec = StreamSpec.from_json(want.spec_json)
            for each in spec.inputs:
                if isinstance(each, KafkaInput) and each.relation == self._source.relation and asks(each):
                    self._refuse_rebuild(want, spec)
                    if not same_definition(each, self._source):
                        raise REPLAY_OUTDATED.error(
                            f"{want.stream} was not deployed since {each.relation} changed.", at=Location(spec.path)
                        )
                    # One that is computed anew from the topic has it all.
                    readings = [] if spec.is_full else self._readings(want, each)
                    if readings and not same_definition(readings[-1].source, each):
                        raise REPLAY_OUTDATED.error(
                            f"{want.stream} has not started since {each.relation} changed.",
                            at=Location(spec.path),
                            hint=f"'penstock start {want.stream}' starts it.",
                        )
                    found.append(_Reader(want, spec, each, tuple(passed(readings))))
        return found

    def _refuse_rebuild(self, want: Desired, spec: StreamSpec) -> None:
        """The rows that a replay would add are replaced by those of the rebuild, which has passed the records."""
        rebuild = self._store.rebuild(want.stream)
        if rebuild is not None and rebuild.phase is not RebuildPhase.FAILED:
            raise REPLAY_OUTDATED.error(
                f"{want.stream} is being rebuilt.",
                at=Location(spec.path),
                hint="Replay when it has taken over; 'penstock status' shows it.",
            )

    def _readings(self, want: Desired, source: KafkaInput) -> list[Reading]:
        """How the stream read the source since its checkpoint began, oldest first."""
        began = self._store.beginnings(want.stream)
        readings: list[Reading] = []
        for each in sorted(self._store.generations(want.stream), key=lambda each: int(each["generation"])):
            if each["checkpoint_id"] != want.checkpoint_id or each["generation"] not in began:
                continue
            offsets = began[each["generation"]].get(source.relation) or {}
            if not readings:
                offsets = offsets or self._first(want, source)
            inputs = StreamSpec.from_json(each["spec_json"]).inputs
            was = [item for item in inputs if isinstance(item, KafkaInput) and item.relation == source.relation]
            readings += [Reading(item, offsets) for item in was]
        return readings

    def _first(self, want: Desired, source: KafkaInput) -> Offset:
        """Where the stream began in the topic; everything, as long as it did not begin."""
        checkpoint = self._paths.checkpoint(want.stream, want.checkpoint_id)
        return initial(checkpoint, [source]).get(source.relation) or {}

    def _missed(self, reader: _Reader, records: DataFrame) -> DataFrame:
        """Those of the records that the stream passed."""
        keys = [
            self._judged(each.source, records)
            .where(f"({each.places}) and quality in ({', '.join(repr(word) for word in each.qualities)})")
            .select(_KEY)
            for each in reader.missed
        ]
        if not keys:
            return records.limit(0)
        every = keys[0]
        for more in keys[1:]:
            every = every.union(more)
        return records.join(every, _KEY, "left_semi")

    # -- the quarantine ------------------------------------------------------------------------------------------------
    def _records(self, condition: str) -> DataFrame:
        """Records as Spark's Kafka reader gives them."""
        rows = self._session.table(self._table).where(condition)
        return rows.dropDuplicates(_KEY).select(*[F.col(f"`{name}`") for name in RECORD])

    def _judged(self, source: KafkaInput, records: DataFrame) -> DataFrame:
        """The records with their quality, by all columns of the source."""
        self._show(source, records, "replay_judged")
        return self._session.sql(judged(_judging(source), "replay_judged"))

    def _show(self, source: KafkaInput, records: DataFrame, name: str) -> None:
        """Records for the SQL of a source, with their messages where these have a schema."""
        registry = {key: value if isinstance(value, str) else value.plain() for key, value in source.registry}
        wanted = messages(source, source.columns)
        ready = runtime.decoded(self._session, records, source.relation, wanted, registry, strict=False)
        ready.createOrReplaceTempView(name)

    def _fitting(self, condition: str) -> DataFrame:
        return self._judged(self._source, self._records(condition)).where(f"quality = '{GOOD}'").select(*RECORD)

    def _unfinished(self) -> list[int]:
        rows = self._session.sql(
            f"select distinct replay from {self._table} where replay is not null and replayed_at is null order by 1"
        )
        return [int(row["replay"]) for row in rows.collect()]

    def _claim(self, condition: str) -> int:
        """Give the records that fit the number of a new replay, and note of the others that they were tried."""
        row = self._session.sql(f"select coalesce(max(replay), 0) + 1 as number from {self._table}").first()
        assert row is not None
        number = int(row["number"])
        judgement = self._judged(self._source, self._records(condition))
        judgement.select("*", F.expr(f"{problem(self._source)} as problem")).createOrReplaceTempView("replay_tried")
        same = " and ".join(f"kept.`{name}` = tried.`{name}`" for name in _KEY)
        self._patiently(
            f"merge into {self._table} as kept using replay_tried as tried "
            f"on {same} and kept.replay is null and kept.replayed_at is null "
            f"when matched and tried.quality = '{GOOD}' "
            f"then update set attempts = kept.attempts + 1, replay = {number} "
            "when matched then update set attempts = kept.attempts + 1, "
            "error = tried.problem.error, column_at_fault = tried.problem.column"
        )
        return number

    def _patiently(self, statement: str) -> None:
        """Run a change that an append of the quarantine's stream may come in the way of."""
        for left in reversed(range(_TRIES)):
            try:
                self._session.sql(statement)
            except PySparkException as problem:
                if not left or "Concurrent" not in str(problem):
                    raise
            else:
                return

    # -- the streams ---------------------------------------------------------------------------------------------------
    def _deliver(self, reader: _Reader, number: int) -> int:
        """Write the rows of a replay into a stream's table and topic, unless they are in; how many records were given
        to it."""
        missed = self._missed(reader, self._records(f"replay = {number}"))
        count = int(missed.count())
        if not count:
            return 0
        rows = self._rows(reader, missed)
        writer = self._writer(reader, rows)
        try:
            if writer.newest_batch() >= number and writer.is_published(number):
                return 0
            writer(rows, number)
        finally:
            writer.close(0)
        log.info("%s: replay %s gave it %s records", reader.want.stream, number, count)
        return count

    def _writer(self, reader: _Reader, rows: DataFrame) -> TableWriter:
        spec, want = reader.spec, reader.want
        own = f"{want.checkpoint_id}/replay/{self._id}"  # numbers begin again with a new table or quarantine
        target = Target(
            stream=spec.name,
            table=spec.output.relation,
            path=tables.location(self._session, spec.output.relation) if spec.has_table else "",
            mode=spec.output.mode.value,
            keys=spec.output.keys,
            checkpoint=self._paths.checkpoint(want.stream, own),
            checkpoint_id=own,
            small_batch_rows=spec.small_batch_rows,
            stateful=False,
            judge=Judge(spec.name, spec.expectations, deletes=False) if spec.expectations else None,
        )
        publisher = runtime.publisher_of(self._session, spec.publish, rows.schema, target)
        writer = (TableWriter if spec.has_table else TopicWriter)(target, self._token, publisher)
        writer.fence()
        return writer

    def _rows(self, reader: _Reader, missed: DataFrame) -> DataFrame:
        """What the model makes of the records, as if the topic held nothing else."""
        for each in reader.spec.inputs:
            if isinstance(each, KafkaInput):
                records = f"{each.view}__records"
                self._show(each, missed if each is reader.source else missed.limit(0), records)
                self._session.sql(select(each, records)).createOrReplaceTempView(each.view)
            elif isinstance(each, TableStreamInput):
                self._session.table(tables.quoted(each.relation)).limit(0).createOrReplaceTempView(each.view)
        functions.make(self._session, {each.name: each.definition for each in reader.spec.functions})
        rows, output = self._session.sql(reader.spec.sql), reader.spec.output
        if output.on_schema_change == columns.FAIL or not reader.spec.has_table:
            return rows
        return columns.fitted(rows, self._session.table(tables.quoted(output.relation)).schema)


def _keeps_more(spec: StreamSpec) -> bool:
    """Whether the table is more than what the SQL makes of each record by itself."""
    more = (spec.output.changes, spec.follow, spec.deduplicate_by or None)
    return spec.stateful or any(each is not None for each in more)


def _judging(source: KafkaInput) -> KafkaInput:
    """The source with all its columns judged, and nothing raised."""
    return source.model_copy(update={"on_bad_record": "quarantine", "rejects": False})
