"""The tables of the store."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 8  # 2: parts; 3: records; 4: sources; 5: beginnings; 6: rebuilds; 7: violations; 8: rebuild_links

# SQLite only counts up a plain INTEGER primary key; PostgreSQL wants the wide one.
_ID = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()

meta = Table("meta", metadata, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False))

desired = Table(
    "desired", metadata,
    Column("stream", String(255), primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("spec_json", Text, nullable=False),
    Column("checkpoint_id", String(64), nullable=False),
    Column("wanted", String(16), nullable=False),
    Column("updated_at", Float, nullable=False),
)  # fmt: skip

generations = Table(
    "generations", metadata,
    Column("stream", String(255), primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("spec_hash", String(64), nullable=False),
    Column("spec_json", Text, nullable=False),
    Column("checkpoint_id", String(64), nullable=False),
    Column("verdict", String(32), nullable=False),
    Column("created_at", Float, nullable=False),
)  # fmt: skip

actual = Table(
    "actual", metadata,
    Column("stream", String(255), primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("engine_token", BigInteger, nullable=False),
    Column("run_id", String(64)),
    Column("started_at", Float),
    Column("updated_at", Float, nullable=False),
    Column("batch_id", BigInteger),
    Column("last_batch_at", Float),
    Column("last_commit_at", Float),
    Column("rows_in_per_s", Float, nullable=False),
    Column("rows_out_per_s", Float, nullable=False),
    Column("total_rows_in", BigInteger, nullable=False),
    Column("total_rows_out", BigInteger, nullable=False),
    Column("offsets", JSON, nullable=False),
    Column("lag_rows", BigInteger),
    Column("lag_seconds", Float),
    Column("lag_at", Float),
    Column("restarts", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("last_failure_at", Float),
    Column("retry_at", Float),
    Column("error_code", String(16)),
    Column("error", Text),
)  # fmt: skip

progress = Table(
    "progress", metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("stream", String(255), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
    Column("rows_in", BigInteger, nullable=False),
    Column("rows_out", BigInteger, nullable=False),
    Column("duration_ms", Integer, nullable=False),
    Column("writer", String(16), nullable=False),
    Column("rows_in_per_s", Float, nullable=False),
    Column("offsets", JSON, nullable=False),
    Column("state_rows", BigInteger, nullable=False),
    Column("state_bytes", BigInteger, nullable=False),
    Index("progress_of_stream", "stream", "id"),
)  # fmt: skip

# How good the records were that a stream read, by source: sums since its checkpoint began.
records = Table(
    "records", metadata,
    Column("stream", String(255), primary_key=True),
    Column("source", String(255), primary_key=True),
    Column("records", BigInteger, nullable=False),
    Column("empty", BigInteger, nullable=False),
    Column("bad", BigInteger, nullable=False),
    Column("partly_bad", BigInteger, nullable=False),
    Column("last_at", Float),  # when the last was read that was bad or partly bad
)  # fmt: skip

# How many rows did not hold an expectation of a stream: a sum since its checkpoint began, or of the last refresh.
violations = Table(
    "violations", metadata,
    Column("stream", String(255), primary_key=True),
    Column("expectation", String(255), primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("last_at", Float),  # when the last of them came
)  # fmt: skip

# Where each generation of a stream began to read: before it, the records were decoded as the one before said.
beginnings = Table(
    "beginnings", metadata,
    Column("stream", String(255), primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("offsets", JSON, nullable=False),
)  # fmt: skip

# New generations that are built beside the deployed ones; each runs as a stream of its own in `desired`.
rebuilds = Table(
    "rebuilds", metadata,
    Column("stream", String(255), primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("spec_json", Text, nullable=False),
    Column("checkpoint_id", String(64), nullable=False),
    Column("phase", String(16), nullable=False),
    Column("error_code", String(16)),
    Column("error", Text),
    Column("started_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
)  # fmt: skip

# Streams that a rebuild is not alone with: `together` with it another one takes over, `after` it another one starts.
rebuild_links = Table(
    "rebuild_links", metadata,
    Column("upstream", String(255), primary_key=True),  # the stream that is rebuilt
    Column("reader", String(255), primary_key=True),
    Column("kind", String(16), nullable=False),
)  # fmt: skip

leases = Table(
    "leases", metadata,
    Column("name", String(255), primary_key=True),
    Column("holder", String(255), nullable=False),  # empty: free
    Column("token", BigInteger, nullable=False),  # kept when the lease is free, so that it only rises
    Column("expires_at", Float, nullable=False),
)  # fmt: skip

commands = Table(
    "commands", metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("kind", String(16), nullable=False),
    Column("stream", String(255), nullable=False),
    Column("payload", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("result", JSON),
    Column("created_at", Float, nullable=False),
    Index("commands_by_state", "state", "id"),
)  # fmt: skip

parts = Table(
    "parts", metadata,
    Column("name", String(255), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("ok", Boolean, nullable=False),
    Column("detail", Text, nullable=False),
    Column("at", Float, nullable=False),
)  # fmt: skip

sources = Table(
    "sources", metadata,
    Column("relation", String(255), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("spec_json", Text, nullable=False),
    Column("properties", JSON, nullable=False),  # names of the client's properties, as the catalog has them
    Column("updated_at", Float, nullable=False),
)  # fmt: skip
