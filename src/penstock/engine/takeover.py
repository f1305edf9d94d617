"""The end of a rebuild: its rows replace those of the stream's table, in one commit.

Rules
- The commit carries the identity of the new generation's checkpoint, with the newest batch that is in the rebuild's
  table: the stream goes on from there under its own name, and a commit that is in already is not made again.
- Both writers are fenced before: an engine that was thought dead neither adds to the old rows nor to the new ones.
- A commit that fails leaves the table as it was, with its constraints.
- Rows of a table that is appended to keep the order in which they came.
- Streams that are rebuilt together take over upstream first. Each has read the hidden tables above it to their end: its
  checkpoint goes on with the tables that have their rows now (`checkpoint.moved`).
- What the topic of a published stream lacks of the new rows is published with the same identity: what differs from the
  old rows, if the topic has all of these; else all of them, and the keys that are gone. Without a table, all rows of
  the rebuild are.
- An error says whether anything was replaced. When some rows are in and others could not be put, it is for whoever
  asked to ask again: nothing is done twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.checkpoint.moved import Place, move
from penstock.checkpoint.offsets import committed_batch
from penstock.compiler.spec import OutputMode, Publish, StreamSpec, TableStreamInput
from penstock.engine import jobs, republish, runtime, tables
from penstock.engine.identity import NO_BATCH, NOTHING, Mark, application
from penstock.engine.publish import Memory, Publisher, by_partition, cannot_be_null, newest_published
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import LEASE_LOST, PUBLISH_NULL_KEY, REBUILD_FAILED, TAKEOVER_UNFINISHED
from penstock.paths import ProjectPaths, beside, safe_name
from penstock.store import Desired

log = logging.getLogger(__name__)

_TRIES = 5


@dataclass(frozen=True)
class Member:
    """A stream whose new generation takes over."""

    spark: SparkSession  # the engine's
    paths: ProjectPaths
    want: Desired  # the old generation
    spec: StreamSpec
    checkpoint_id: str

    @cached_property
    def old(self) -> StreamSpec | None:
        """None: of another version of Penstock."""
        return StreamSpec.if_known(self.want.spec_json)

    @cached_property
    def job(self) -> ModuleType:
        return jobs.load(self.spec, self.paths.jobs / safe_name(self.spec.name) / "takeover" / "job.py")

    @property
    def checkpoint(self) -> Path:
        return self.paths.checkpoint(self.spec.name, self.checkpoint_id)

    @property
    def old_checkpoint(self) -> Path:
        return self.paths.checkpoint(self.spec.name, self.want.checkpoint_id)

    @property
    def app(self) -> str:
        return application(self.spec.name, self.checkpoint_id)

    @property
    def old_app(self) -> str:
        return application(self.spec.name, self.want.checkpoint_id)

    @property
    def at(self) -> Location:
        return Location(self.spec.path)

    def publisher(self) -> Publisher:
        """Of the new generation, which publishes."""
        spec, job = self.spec, self.job
        assert spec.publish is not None
        session = runtime.session_for(self.spark, job.STREAM)
        schema = runtime.table_schema(session, job.STREAM, job.build(session).schema)
        return Publisher(
            session, spec.name, spec.publish, schema, runtime.profile_broker(session),
            upsert=spec.output.mode is OutputMode.UPSERT, checkpoint=self.checkpoint, checkpoint_id=self.checkpoint_id,
        )  # fmt: skip

    def published(self, how: Publish) -> int:
        """The newest batch of the old generation that is sure to be in the topic, to which it published in this way."""
        return newest_published(
            runtime.profile_broker(self.spark), how, self.spec.name, self.old_checkpoint, self.want.checkpoint_id
        )

    def show(self) -> None:
        """Let the view in which people see the table have the new columns."""
        if self.spec.output.view is not None:
            stream = self.job.STREAM
            runtime.ensure_view(runtime.session_for(self.spark, stream), stream, anew=True)


@dataclass
class _Progress:
    begun: bool = False  # something was replaced or published, or may have been


def take_over(session: SparkSession, token: int, members: Sequence[Member]) -> bool:
    """Replace the rows of streams by those of their rebuilds, upstream first; False when that is done already."""
    progress = _Progress()
    try:
        progress.begun = any(_is_in(session, each) for each in members)
        for each in members:
            _check_keys(session, each)
        done = [_taken_over(session, token, each, members, progress) for each in members]
        for each in members:
            each.show()
    except Exception as problem:
        if isinstance(problem, PenstockError) and problem.kind is LEASE_LOST:
            raise
        names = ", ".join(each.spec.name for each in members)
        kind = TAKEOVER_UNFINISHED if progress.begun or _may_be_in(session, members) else REBUILD_FAILED
        raise kind.error(f"{names}: {problem}", at=members[0].at) from problem
    return any(done)


def _may_be_in(session: SparkSession, members: Sequence[Member]) -> bool:
    try:
        return any(_is_in(session, each) for each in members)
    except Exception:  # of an engine that is about to end: nobody knows
        log.exception("whether rows were replaced is not known")
        return True


def _check_keys(session: SparkSession, member: Member) -> None:
    """Find out before anything is replaced what could not be published."""
    spec, hidden = member.spec, beside(member.spec.output.relation)
    if spec.publish is None or spec.output.mode is not OutputMode.UPSERT or not cannot_be_null(spec.publish):
        return
    (key,) = spec.publish.key
    if not tables.exists(session, hidden):
        return
    rows = session.read.format("delta").load(tables.location(session, hidden))
    if not rows.where(F.col(tables.quoted_name(key)).isNull()).isEmpty():
        raise PUBLISH_NULL_KEY.error(f"{spec.name}: a row is published by {key}, which is null.")


def _taken_over(
    session: SparkSession, token: int, member: Member, members: Sequence[Member], progress: _Progress
) -> bool:
    spec = member.spec
    hidden = beside(spec.output.relation)
    source = tables.location(session, hidden) if tables.exists(session, hidden) else None
    done = _is_in(session, member)
    if not done:
        if source is None:
            raise REBUILD_FAILED.error(f"{spec.name}: the table of the rebuild is gone.", at=member.at)
        mark = fenced(source, application(beside(spec.name), member.checkpoint_id), token)
        if spec.has_table:
            _rows(session, token, member, source, mark)
            progress.begun = True
    if spec.has_table:
        tables.keep_checks(session, spec.output.relation, dict(spec.output.checks), member.at)
    _go_on_with(session, member, members)
    if spec.publish is not None:
        rows = _lacking(session, member, source)
        progress.begun = True  # a broker that does not answer may have taken them
        _publish(session, member, source, rows)
    if not spec.has_table:
        tables.drop(session, spec.output.relation, spec.name)  # it had one before
    return not done


def _is_in(session: SparkSession, member: Member) -> bool:
    """Whether the rows of the new generation are in the stream's table."""
    table = member.spec.output.relation
    if not member.spec.has_table or not tables.exists(session, table):
        return False
    return Mark.of(DeltaTable(tables.location(session, table)).transaction_version(member.app)) != NOTHING


def _rows(session: SparkSession, token: int, member: Member, source: str, mark: Mark) -> None:
    spec, table = member.spec, member.spec.output.relation
    _make_sure(session, spec)
    path = tables.location(session, table)
    fenced(path, member.old_app, token)
    # Constraints of the old rows say nothing about the new ones. What a try before this one took off is put back.
    old = member.old
    before = dict(old.output.checks) if old is not None and old.has_table else tables.checks_of(session, table)
    tables.rewrite(
        session,
        table,
        lambda: _replace(session, source, path, member.app, mark, in_order=spec.output.mode is OutputMode.APPEND),
        checks={},
        before=before,
        at=member.at,
    )


def _go_on_with(session: SparkSession, member: Member, members: Sequence[Member]) -> None:
    """Let the checkpoint stand in the tables whose rows it has read from hidden ones."""
    if member.spec.is_full:
        return  # it computes anew whatever table it finds
    read = {each.relation: each for each in member.spec.inputs if isinstance(each, TableStreamInput)}
    places = {}
    for table in [each.spec.output.relation for each in members if each.spec.output.relation in read]:
        if read[table].rows == "upsert":
            tables.keep_changes(session, table)
        hidden = DeltaTable(tables.location(session, beside(table)))
        found = DeltaTable(tables.location(session, table))
        places[str(hidden.metadata().id)] = Place(str(found.metadata().id), found.version() + 1)
    if places:
        changed = move(member.checkpoint, places)
        log.info("%s: %s batches of its checkpoint stand in %s now", member.spec.name, changed, ", ".join(read))


def _publish(session: SparkSession, member: Member, source: str | None, rows: DataFrame) -> None:
    """Publish what the topic lacks, unless that is done."""
    publisher = member.publisher()
    try:
        publisher.fence()
        publisher.send_in_parts(by_partition(rows.persist()), _newest_batch(session, member, source))
        publisher.complete()
    finally:
        rows.unpersist()
        publisher.close()


def _lacking(session: SparkSession, member: Member, source: str | None) -> DataFrame:
    spec, old = member.spec, member.old
    assert spec.publish is not None
    if not spec.has_table:
        return session.read.format("delta").load(source)
    path = tables.location(session, spec.output.relation)
    replaced = _replaced_at(path, member.app)
    new = session.read.format("delta").option("versionAsOf", replaced).load(path)
    if old is None or old.publish is None or old.publish.topic != spec.publish.topic or not old.has_table:
        return new
    before = session.read.format("delta").option("versionAsOf", replaced - 1).load(path)
    keys = spec.output.keys if spec.output.mode is OutputMode.UPSERT else ()
    if old.output.keys != spec.output.keys or not republish.comparable(new, before, keys):
        return new
    if old.publish == spec.publish and _has_all(member, old.publish, path):
        return republish.lacking(new, before, keys)
    return republish.anew(new, before, keys) if keys else new


def _has_all(member: Member, publish: Publish, path: str) -> bool:
    """Whether all rows of the old table are in the topic. Not so when it was published since after it had rows, or when
    the newest ones could not be published."""
    if not Memory(member.old_checkpoint, publish.topic).is_complete(publish):
        return False
    written = Mark.of(DeltaTable(path).transaction_version(member.old_app))
    return member.published(publish) >= written.batch_id


def _newest_batch(session: SparkSession, member: Member, source: str | None) -> int:
    """The newest batch of the new generation: nothing up to it is published again."""
    path, app = source, application(beside(member.spec.name), member.checkpoint_id)
    if member.spec.has_table:
        path, app = tables.location(session, member.spec.output.relation), member.app
    written = Mark.of(DeltaTable(str(path)).transaction_version(app)).batch_id
    done = committed_batch(member.checkpoint)
    return max(written, NO_BATCH if done is None else done)


def _replaced_at(path: str, app: str) -> int:
    """The version of a table in which the rows of the application came."""
    for commit in DeltaTable(path).history():
        if commit.get("userMetadata") == app:
            return int(commit["version"])
    raise REBUILD_FAILED.error(f"The commit that replaced the rows of {path} is gone from its log.")


def fenced(path: str, app: str, token: int) -> Mark:
    """Put the engine's token into a table's log; the newest batch of the application that is in it."""
    for _ in range(_TRIES):
        table = DeltaTable(path)
        mark = Mark.of(table.transaction_version(app))
        if mark.token > token:
            raise LEASE_LOST.error(f"A newer engine (token {mark.token}) writes {path}.")
        if mark.token == token:
            return mark
        mark = Mark(token, mark.batch_id)
        properties = CommitProperties(app_transactions=[Transaction(app, mark.version)])
        try:
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        except CommitFailedError:
            continue
        return mark
    raise LEASE_LOST.error(f"{path} could not be fenced; somebody else writes.")


def _make_sure(session: SparkSession, spec: StreamSpec) -> None:
    """A table that is not there, or that somebody dropped in the meantime, is made, empty, to be filled."""
    table, stream = spec.output.relation, spec.name
    if not (tables.exists(session, table) and tables.owner(session, table) == stream):
        tables.ensure(session, table, session.table(tables.quoted(beside(table))).schema, stream, full_refresh=True)


def _replace(session: SparkSession, source: str, path: str, app: str, mark: Mark, *, in_order: bool) -> None:
    rows = tables.rows_in_order(session, source) if in_order else session.read.format("delta").load(source)
    rows = _with_comments(session, rows, path)
    options = {"overwriteSchema": "true", "txnAppId": app, "txnVersion": str(mark.version), "userMetadata": app}
    if in_order:
        options["maxRecordsPerFile"] = str(tables.FILE_OF)
    rows.write.format("delta").mode("overwrite").options(**options).save(path)
    found = Mark.of(DeltaTable(path).transaction_version(app))
    if found != mark:
        raise LEASE_LOST.error(f"The rows of {path} were not replaced: {found} is in the log.")


def _with_comments(session: SparkSession, rows: DataFrame, path: str) -> DataFrame:
    """The rows, with the comments that the table's columns of the same names have."""
    fields = session.read.format("delta").load(path).schema.fields
    comments = {field.name: field.metadata["comment"] for field in fields if "comment" in field.metadata}
    return rows.select(
        *(
            F.col(tables.quoted_name(name)).alias(name, metadata={"comment": comments[name]})
            if name in comments
            else F.col(tables.quoted_name(name))
            for name in rows.columns
        )
    )
