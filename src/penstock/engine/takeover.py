"""The end of a rebuild: its rows replace those of the stream's table, in one commit.

Rules
- The commit carries the identity of the new generation's checkpoint, with the newest batch that is in the rebuild's
  table: the stream goes on from there under its own name, and a commit that is in already is not made again.
- Both writers are fenced before: an engine that was thought dead neither adds to the old rows nor to the new ones.
- A commit that fails leaves the table as it was, with its constraints.
"""

from __future__ import annotations

import logging

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.compiler.spec import StreamSpec
from penstock.engine import tables
from penstock.engine.identity import NOTHING, Mark, application
from penstock.errors import Location
from penstock.errors.catalogue import LEASE_LOST, REBUILD_FAILED
from penstock.paths import beside

log = logging.getLogger(__name__)

_TRIES = 5


def take_over(
    session: SparkSession, token: int, spec: StreamSpec, *, checkpoint_id: str, old: StreamSpec, old_checkpoint: str
) -> bool:
    """Replace the rows and columns of the stream's table by those of its rebuild; False when that is done already."""
    table, stream = spec.output.relation, spec.name
    at = Location(spec.path)
    source = tables.location(session, beside(table)) if tables.exists(session, beside(table)) else None
    _make_sure(session, spec, source is not None)
    path, app = tables.location(session, table), application(stream, checkpoint_id)
    done = Mark.of(DeltaTable(path).transaction_version(app)) != NOTHING
    if not done:
        if source is None:
            raise REBUILD_FAILED.error(f"{stream}: the table of the rebuild is gone.", at=at)
        fenced(path, application(stream, old_checkpoint), token)
        mark = fenced(source, application(beside(stream), checkpoint_id), token)
        try:
            tables.keep_checks(session, table, {}, at)  # those of the old rows say nothing about the new ones
            _replace(session, source, path, app, mark)
        except BaseException:
            _as_before(session, old, at)
            raise
    tables.keep_checks(session, table, dict(spec.output.checks), at)
    return not done


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


def _make_sure(session: SparkSession, spec: StreamSpec, built: bool) -> None:
    """A table that somebody dropped in the meantime is made again, empty, to be filled."""
    table, stream = spec.output.relation, spec.name
    if built and not (tables.exists(session, table) and tables.owner(session, table) == stream):
        tables.ensure(session, table, session.table(tables.quoted(beside(table))).schema, stream, full_refresh=True)


def _replace(session: SparkSession, source: str, path: str, app: str, mark: Mark) -> None:
    rows = _with_comments(session, session.read.format("delta").load(source), path)
    options = {"overwriteSchema": "true", "txnAppId": app, "txnVersion": str(mark.version)}
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


def _as_before(session: SparkSession, old: StreamSpec, at: Location) -> None:
    try:
        tables.keep_checks(session, old.output.relation, dict(old.output.checks), at)
    except Exception:  # the error that this is part of says what matters
        log.exception("%s: the constraints of its table could not be put back", old.name)
