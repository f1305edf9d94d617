"""The tables of the store."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 1

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
