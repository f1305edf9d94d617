"""What sources become in a job: formats of key and value, computed columns, starts, patterns, credentials."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from source_files import column, compiled, table

from penstock.compiler import StreamSpec, render_job
from penstock.compiler.spec import FromOffsets, FromTimestamp, KafkaInput


def kafka(spec: StreamSpec) -> KafkaInput:
    source = spec.inputs[0]
    assert isinstance(source, KafkaInput)
    return source


def checked(spec: StreamSpec) -> str:
    """The job, which is Python in ruff's format, whose spec survives its JSON."""
    again = StreamSpec.from_json(spec.to_json())
    assert (again, again.hash) == (spec, spec.hash)
    job = render_job(spec)
    ast.parse(job)
    ruff = [
        str(Path(sys.executable).parent / "ruff"),
        "format",
        "--isolated",
        "--no-cache",
        "--line-length",
        "120",
        "-",
    ]
    assert subprocess.run(ruff, input=job, capture_output=True, text=True, check=True).stdout == job
    return job


def function(job: str) -> str:
    return job[job.index("def shop__clicks") : job.index("def build(")].strip()


def test_json_keys_csv_values_and_computed_columns(tmp_path: Path) -> None:
    text = table(
        "{topic: t, key: {format: json}, value: {format: csv, delimiter: '|'}, "
        "watermark: {column: at, delay: 1 minute}}",
        column("at", "timestamp", expr="timestamp_millis(ms_later)"),
        column("id", "bigint", **{"from": "key.user.id"}),
        column("ms", "bigint"),
        column("Price", "decimal(10, 2)"),
        column("ms_later", "bigint", expr="ms + 1000"),
        column("whole", "string", **{"from": "value"}),
    )
    assert (
        function(checked(compiled(text, tmp_path)))
        == '''\
def shop__clicks(spark: SparkSession) -> DataFrame:
    """Source shop.clicks: topic 't', CSV values."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.fetch.max.wait.ms", 20)
        .options(**runtime.kafka_options(spark, None))
        .option("subscribe", "t")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200000)
        .option("failOnDataLoss", "true")
        .load()
    )
    message_key = F.from_json(F.col("key").cast("string"), "`user` STRUCT<`id`: BIGINT>", {"mode": "PERMISSIVE"})
    rows = records.withColumn("message_key", message_key)
    message = F.from_csv(
        F.col("value").cast("string"), "`ms` BIGINT, `Price` DECIMAL(10,2)", {"mode": "PERMISSIVE", "sep": "|"}
    )
    # An empty or unreadable message is no row.
    rows = rows.withColumn("message", message).where("message.`ms` is not null or message.`Price` is not null")
    decoded = rows.select(
        F.col("message_key.`user`.`id`").alias("id"),
        F.col("message.`ms`").alias("ms"),
        F.col("message.`Price`").alias("Price"),
        F.col("value").cast("string").alias("whole"),
    )
    decoded = decoded.withColumn("ms_later", F.expr("ms + 1000").cast("bigint"))
    decoded = decoded.withColumn("at", F.expr("timestamp_millis(ms_later)").cast("timestamp"))
    return decoded.select("`at`", "`id`", "`ms`", "`Price`", "`ms_later`", "`whole`").withWatermark("at", "1 minute")'''
    )


def test_computed_columns_that_come_last_need_no_reordering(tmp_path: Path) -> None:
    text = table("{topic: t}", column("a", "int"), column("B", "struct<X: int>", expr="named_struct('X', a)"))
    job = checked(compiled(text, tmp_path))
    assert """F.expr("named_struct('X', a)").cast("STRUCT<`X`: INT>")""" in job
    assert job.count(".select(") == 1


def test_a_start_time_is_that_of_the_first_message_or_what_comes_next(tmp_path: Path) -> None:
    spec = compiled(table("{topic: t, start: {timestamp: '2026-01-01T00:00:00Z'}}"), tmp_path)
    assert isinstance(kafka(spec).starting, FromTimestamp)
    job = checked(spec)
    assert '.option("startingTimestamp", "1767225600000")' in job
    assert '.option("startingOffsetsByTimestampStrategy", "latest")' in job
    assert 'startingOffsets"' not in job


def test_start_offsets_and_partitions_name_their_topic(tmp_path: Path) -> None:
    spec = compiled(table("{topic: t, partitions: [2, 0], start: {offsets: {0: 42, 2: latest}}}"), tmp_path)
    assert kafka(spec).starting == FromOffsets(offsets=((0, 42), (2, -1)))
    job = checked(spec)
    assert """.option("assign", '{"t": [0, 2]}')""" in job
    assert """.option("startingOffsets", '{"t": {"0": 42, "2": -1}}')""" in job
    assert "subscribe" not in job


def test_a_pattern_is_subscribed_to(tmp_path: Path) -> None:
    spec = compiled(table("{topic_pattern: 'clicks_.*'}"), tmp_path)
    assert '.option("subscribePattern", "clicks_.*")' in checked(spec)
    assert [kafka(spec).reads(name) for name in ("clicks_a", "my_clicks_a", "clicks")] == [True, False, False]


def test_credentials_are_worked_out_at_run_time_and_other_options_are_not(tmp_path: Path) -> None:
    stream = (
        "{topic: t, bootstrap.servers: 'b:1', security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, "
        "sasl.username: u, sasl.password: {file: /run/secrets/kafka}, kafka.max.poll.records: 5}"
    )
    job = checked(compiled(table(stream), tmp_path))
    assert (
        """    security = {
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.password": {"file": "/run/secrets/kafka"},
        "kafka.sasl.username": "u",
        "kafka.security.protocol": "SASL_PLAINTEXT",
    }
"""
        in job
    )
    assert '.options(**runtime.kafka_options(spark, "b:1", security))' in job
    assert '.option("kafka.max.poll.records", "5")' in job


def test_settings_that_are_not_used_are_not_part_of_a_spec(tmp_path: Path) -> None:
    """A stream that was deployed before they existed keeps its hash."""
    made = compiled(table("{topic: t}"), tmp_path).to_json()
    for name in ("topic_pattern", "partitions", "key_options", "value_options", "expr"):
        assert f'"{name}"' not in made


@pytest.mark.parametrize(
    ("kind", "expression"),
    [("string", 'F.col("value").cast("string")'), ("raw", 'F.col("value")')],
)
def test_text_and_bytes_are_one_column(kind: str, expression: str, tmp_path: Path) -> None:
    declared = column("a", "string" if kind == "string" else "binary")
    job = checked(compiled(table(f"{{topic: t, value: {{format: {kind}}}}}", declared), tmp_path))
    assert f'{expression}.alias("a"),' in job
    assert "from_" not in function(job)
