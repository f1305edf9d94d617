"""A StreamSpec as a PySpark program that a person can read and run.

Rules
- The text depends on the spec alone; equal specs give equal programs.
- It is formatted as ruff would format it, with lines of at most 120 signs where the content allows.
- Every text of the user's (SQL, names, topics) goes through one of two functions, `literal` and `block`, that make a
  Python literal of it; nothing is spliced in raw.
- Function names are the names of the inputs' views, which are plain by construction.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.compiler.decoding import has_value, helpers, needs_headers, select_columns, value_schema
from penstock.compiler.spec import KafkaInput, StreamSpec, TableStreamInput, Watermark
from penstock.compiler.text import block, call, joined, literal, sentence

_IMPORTS = """from __future__ import annotations

from pyspark.sql import {column}DataFrame, SparkSession
{functions}
from penstock.engine import runtime
"""


def render_job(spec: StreamSpec) -> str:
    """The text of job.py."""
    topics = [each for each in spec.inputs if isinstance(each, KafkaInput)]
    functions = helpers(topics)
    imports = _IMPORTS.format(
        column="Column, " if functions else "",
        functions="from pyspark.sql import functions as F\n" if topics else "",
    )
    parts = [f'"""{_docstring(spec)}"""\n\n{imports}', f"SQL = {block(spec.sql)}\n"]
    parts += [f"\n{function}" for function in functions]
    for each in spec.inputs:
        if isinstance(each, KafkaInput):
            parts.append("\n" + _kafka(each, spec))
        elif isinstance(each, TableStreamInput):
            parts.append("\n" + _table_stream(each))
    parts.append("\n" + _build(spec))
    parts.append("\n" + _stream(spec))
    parts.append('\nif __name__ == "__main__":\n    runtime.main(STREAM)\n')
    return "\n".join(parts)


def _docstring(spec: StreamSpec) -> str:
    return (
        f"{sentence(f'Stream {spec.name}, compiled by Penstock from {spec.path}.')}\n\n"
        "Change the model, not this file. Run it alone:\n"
        'spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR\n'
    )


def _kafka(source: KafkaInput, spec: StreamSpec) -> str:
    options = [
        ("kafka.bootstrap.servers", f"runtime.bootstrap(spark, {literal(source.bootstrap)})"),
        ("subscribe", literal(source.topic)),
        ("startingOffsets", literal(source.starting)),
        ("maxOffsetsPerTrigger", str(spec.trigger.max_batch_rows)),
    ]
    if spec.trigger.buffer_limit > 1:
        options.append(("minOffsetsPerTrigger", str(min(spec.trigger.buffer_limit, spec.trigger.max_batch_rows))))
        options.append(("maxTriggerDelay", literal(f"{spec.trigger.time_window_ms}ms")))
    if "kafka.fetch.max.wait.ms" not in dict(source.options):
        options.append(("kafka.fetch.max.wait.ms", "20"))
    options.append(("failOnDataLoss", literal("true")))
    if needs_headers(source):
        options.append(("includeHeaders", literal("true")))
    options.extend((name, literal(value)) for name, value in source.options)
    lines = [
        f"def {source.view}(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"Source {source.relation}: topic {source.topic!r}, {_values(source)} values.")}"""',
        "    records = (",
        '        spark.readStream.format("kafka")',
        *(f"        .option({literal(name)}, {value})" for name, value in options),
        "        .load()",
        "    )",
    ]
    rows = "records"
    schema = value_schema(source)
    if schema:
        from_json = ['F.col("value").cast("string")', joined(schema, indent=8), '{"mode": "PERMISSIVE"}']
        lines += call("message = F.from_json", from_json, indent=4)
        lines.append("    # An empty or unreadable message is no row.")
        lines += call(
            'rows = records.withColumn("message", message).where', [joined(has_value(source), indent=8)], indent=4
        )
        rows = "rows"
    selected = call(f"return {rows}.select", select_columns(source), indent=4, exploded=True)
    selected[-1] += _with_watermark(source.watermark)
    return "\n".join([*lines, *selected]) + "\n"


def _values(source: KafkaInput) -> str:
    return {"json": "JSON", "string": "text", "raw": "binary"}.get(source.value_format, source.value_format)


def _table_stream(source: TableStreamInput) -> str:
    lines = [
        f"def {source.view}(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"The new rows of {source.relation}.")}"""',
        '    reader = spark.readStream.format("delta").option("maxBytesPerTrigger", "64m")',
        f"    return reader.table({literal(source.relation)}){_with_watermark(source.watermark)}",
    ]
    return "\n".join(lines) + "\n"


def _with_watermark(watermark: Watermark | None) -> str:
    return f".withWatermark({literal(watermark.column)}, {literal(watermark.delay)})" if watermark else ""


def _build(spec: StreamSpec) -> str:
    lines = [
        "def build(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"The rows of {spec.output.relation}, as a streaming DataFrame.")}"""',
    ]
    views = [each.view for each in spec.inputs if isinstance(each, KafkaInput | TableStreamInput)]
    lines += [f"    {view}(spark).createOrReplaceTempView({literal(view)})" for view in views]
    lines.append("    return spark.sql(SQL)")
    return "\n".join(lines) + "\n"


def _stream(spec: StreamSpec) -> str:
    arguments = [
        f"name={literal(spec.name)}",
        "build=build",
        f"table={literal(spec.output.relation)}",
        f"mode={literal(spec.output.mode.value)}",
        f"keys={_tuple(spec.output.keys)}",
        f"time_window_ms={spec.trigger.time_window_ms}",
        f"continuous={is_continuous(spec)}",
        f"shuffle_partitions={spec.shuffle_partitions}",
        f"small_batch_rows={spec.small_batch_rows}",
        f"stateful={spec.stateful}",
    ]
    return "\n".join(call("STREAM = runtime.Stream", arguments, indent=0, exploded=True)) + "\n"


def is_continuous(spec: StreamSpec) -> bool:
    """Whether the inputs are asked all the time: topics are, and hold a buffer back themselves until it is full."""
    return all(each.kind == "kafka" for each in spec.inputs if each.kind != "table")


def _tuple(values: Iterable[str]) -> str:
    items = [literal(value) for value in values]
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
