"""What sources become in a job: formats of key and value, computed columns, starts, patterns, credentials."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from source_files import column, compiled, table

from penstock.compiler import StreamSpec, render_job
from penstock.compiler.spec import FromOffsets, FromTimestamp, Function, KafkaInput


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
    return job[job.index("SHOP__CLICKS__JUDGED = ") : job.index("def build(")].strip()


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
SHOP__CLICKS__JUDGED = """
select
    *,
    case
        when `value` is null or length(`value`) = 0 then 'empty'
        when message.`ms` is not null
            or message.`Price` is not null
            then if(
                message.`_unfit` is not null
                or message_key.`_unfit` is not null,
                'partly bad',
                'good'
            )
        when message.`_unfit` is null then 'empty'
        else 'bad'
    end as quality
from (
    select
        *,
        from_json(
            cast(`key` as string),
            '`user` STRUCT<`id`: BIGINT>, `_unfit` STRING',
            map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
        ) as message_key,
        from_csv(
            cast(`value` as string),
            '`ms` BIGINT, `Price` DECIMAL(10,2), `_unfit` STRING',
            map('mode', 'PERMISSIVE', 'sep', '|', 'columnNameOfCorruptRecord', '_unfit')
        ) as message
    from shop__clicks__records
)
"""


SHOP__CLICKS = """
select `at`, `id`, `ms`, `Price`, `ms_later`, `whole`
from (
    select *, cast(timestamp_millis(ms_later) as TIMESTAMP) as `at`
    from (
        select *, cast(ms + 1000 as BIGINT) as `ms_later`
        from (
            select
                message_key.`user`.`id` as `id`,
                message.`ms` as `ms`,
                message.`Price` as `Price`,
                cast(`value` as STRING) as `whole`
            from shop__clicks__judged
            where quality in ('good', 'partly bad')
        )
    )
)
"""


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
    records.createOrReplaceTempView("shop__clicks__records")
    judged = runtime.counted(spark, "shop.clicks", SHOP__CLICKS__JUDGED)
    judged.createOrReplaceTempView("shop__clicks__judged")
    rows = runtime.rows(spark, "shop.clicks", SHOP__CLICKS)
    return rows.withWatermark("at", "1 minute")'''
    )


def test_computed_columns_that_come_last_need_no_reordering(tmp_path: Path) -> None:
    text = table("{topic: t}", column("a", "int"), column("B", "struct<X: int>", expr="named_struct('X', a)"))
    job = checked(compiled(text, tmp_path))
    assert "cast(named_struct('X', a) as STRUCT<`X`: INT>) as `B`\nfrom (" in job
    assert job[job.index("SHOP__CLICKS = ") : job.index("def build(")].count("select") == 2  # fields; computed column


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
    for name in ("topic_pattern", "partitions", "key_options", "value_options", "expr", "on_bad_record"):
        assert f'"{name}"' not in made


@pytest.mark.parametrize(
    ("kind", "expression"),
    [("string", "cast(`value` as STRING)"), ("raw", "`value`")],
)
def test_text_and_bytes_are_one_column(kind: str, expression: str, tmp_path: Path) -> None:
    declared = column("a", "string" if kind == "string" else "binary")
    job = checked(compiled(table(f"{{topic: t, value: {{format: {kind}}}}}", declared), tmp_path))
    assert f"    {expression} as `a`\n" in job
    assert "from_" not in function(job)


def model(sql: str, tmp_path: Path) -> str:
    text = table(
        "{topic: t}",
        column("a", "int"),
        column("b", "string"),
        column("c", "double"),
        column("d", "bigint", expr="a + 1"),
        column("t", "string", **{"from": "header(t)"}),
    )
    return function(checked(compiled(text, tmp_path, sql=sql)))


def test_only_the_columns_that_the_model_uses_are_decoded(tmp_path: Path) -> None:
    job = model("select d from shop.clicks", tmp_path)
    assert "'`a` INT, `_unfit` STRING',\n            map(" in job
    assert "message.`a` is not null\n            or exists(" in job
    assert "'`b` STRING, `c` DOUBLE'" in job  # asked only when `a` is null: is it a row at all?
    assert "header" not in job


@pytest.mark.parametrize(
    "sql", ["select * from shop.clicks", "select s.* from shop.clicks as s", "select count(*) as n from shop.clicks"]
)
def test_all_columns_are_decoded_where_all_count(sql: str, tmp_path: Path) -> None:
    job = model(sql, tmp_path)
    assert "'`a` INT, `b` STRING, `c` DOUBLE, `_unfit` STRING'" in job
    assert "exists(" not in job


def test_the_functions_of_a_job_are_python_in_ruff_s_format(tmp_path: Path) -> None:
    functions = (
        Function(name="shop.one", called="shop__one", signature="() RETURNS int", body="1"),
        Function(
            name="shop.two", called="shop__two", signature="() RETURNS string", body='shop__one()\n  || \'""" \\\''
        ),
    )
    spec = compiled(table("{topic: t, value: {format: json}}", column("a", "string")), tmp_path)
    assert 'FUNCTIONS = {\n    "shop.one": """\n' in checked(spec.model_copy(update={"functions": functions}))
