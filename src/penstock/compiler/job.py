"""A StreamSpec as a PySpark program that a person can read and run.

Rules
- The text depends on the spec alone; equal specs give equal programs.
- It is formatted as ruff would format it, with lines of at most 120 signs where the content allows.
- Every text of the user's (SQL, names, topics) goes through one of two functions, `literal` and `block`, that make a
  Python literal of it; nothing is spliced in raw.
- Function names are the names of the inputs' views, which are plain by construction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from penstock.compiler.decoding import (
    computed_columns,
    decoder,
    has_value,
    helpers,
    in_place,
    needs_headers,
    part,
    select_columns,
    struct_of,
)
from penstock.compiler.spec import FromOffsets, FromTimestamp, KafkaInput, StreamSpec, TableStreamInput, Watermark
from penstock.compiler.text import block, call, joined, literal, sentence
from penstock.kafka.security import Value, is_security
from penstock.project.sparktypes import quoted

_IMPORTS = """from __future__ import annotations

from pyspark.sql import {column}DataFrame, SparkSession
{functions}
from penstock.engine import runtime
"""


def render_job(spec: StreamSpec) -> str:
    """The text of job.py."""
    topics = [each for each in spec.inputs if isinstance(each, KafkaInput)]
    functions = helpers(topics)
    more = sorted({line for each in topics for name in ("key", "value") for line in decoder(each, name).imports})
    imports = _IMPORTS.format(
        column="Column, " if functions else "",
        functions="".join(f"{line}\n" for line in ["from pyspark.sql import functions as F", *more]) if topics else "",
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
    lines = [
        f"def {source.view}(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"Source {source.relation}: {source.topics}, {_values(source)} values.")}"""',
        *_security(source),
        "    records = (",
        '        spark.readStream.format("kafka")',
        *_options(source, spec),
        "        .load()",
        "    )",
    ]
    rows = "records"
    for name in ("key", "value"):
        found = decoder(source, name).call(part(source, name))
        if found is None:
            continue
        lines += call(f"{struct_of(name)} = {found[0]}", found[1], indent=4)
        decoded = f"{rows}.withColumn({literal(struct_of(name))}, {struct_of(name)})"
        if name == "value":
            lines.append("    # An empty or unreadable message is no row.")
            lines += call(f"rows = {decoded}.where", [joined(has_value(source), indent=8)], indent=4)
        else:
            lines.append(f"    rows = {decoded}")
        rows = "rows"
    return "\n".join([*lines, *_selected(source, rows)]) + "\n"


def _is_secured(name: str, value: Value) -> bool:
    """Whether an option is worked out at run time: credentials are, and whatever refers to a secret."""
    return is_security(name) or not isinstance(value, str)


def _security(source: KafkaInput) -> list[str]:
    secured = {name: value for name, value in source.options if _is_secured(name, value)}
    if not secured:
        return []
    lines = [f"        {literal(name)}: {_value(value)}," for name, value in secured.items()]
    return ["    security = {", *lines, "    }"]


def _options(source: KafkaInput, spec: StreamSpec) -> list[str]:
    own = [(name, literal(str(value))) for name, value in source.options if not _is_secured(name, value)]
    broker = f"spark, {literal(source.bootstrap)}{', security' if len(own) < len(source.options) else ''}"
    lines = [f"        .options(**runtime.kafka_options({broker}))"]
    if "kafka.fetch.max.wait.ms" not in dict(own):
        lines.insert(0, '        .option("kafka.fetch.max.wait.ms", 20)')
    options = [*_subscription(source), *_starting(source), ("maxOffsetsPerTrigger", str(spec.trigger.max_batch_rows))]
    if spec.trigger.buffer_limit > 1:
        options.append(("minOffsetsPerTrigger", str(min(spec.trigger.buffer_limit, spec.trigger.max_batch_rows))))
        options.append(("maxTriggerDelay", literal(f"{spec.trigger.time_window_ms}ms")))
    options.append(("failOnDataLoss", literal("true")))
    if needs_headers(source):
        options.append(("includeHeaders", literal("true")))
    return [*lines, *(f"        .option({literal(name)}, {value})" for name, value in [*options, *own])]


def _subscription(source: KafkaInput) -> list[tuple[str, str]]:
    if source.topic_pattern is not None:
        return [("subscribePattern", literal(source.topic_pattern))]
    if source.partitions:
        return [("assign", literal(json.dumps({source.topic: source.partitions})))]
    return [("subscribe", literal(source.topic))]


def _starting(source: KafkaInput) -> list[tuple[str, str]]:
    start = source.starting
    if isinstance(start, FromTimestamp):
        # With no message of that time yet, a partition is read from what comes next.
        return [
            ("startingTimestamp", literal(str(start.milliseconds))),
            ("startingOffsetsByTimestampStrategy", literal("latest")),
        ]
    if isinstance(start, FromOffsets):
        return [("startingOffsets", literal(json.dumps({source.topic: {str(p): at for p, at in start.offsets}})))]
    return [("startingOffsets", literal(start))]


def _selected(source: KafkaInput, rows: str) -> list[str]:
    computed = computed_columns(source)
    selected = call(f"{'decoded =' if computed else 'return'} {rows}.select", select_columns(source), indent=4,
                    exploded=True)  # fmt: skip
    if not computed:
        selected[-1] += _with_watermark(source.watermark)
        return selected
    selected += [
        line
        for name, expression in computed
        for line in call("decoded = decoded.withColumn", [literal(name), expression], indent=4)
    ]
    if in_place(source):
        return [*selected, f"    return decoded{_with_watermark(source.watermark)}"]
    names = [literal(quoted(column.name)) for column in source.columns]
    ordered = call("return decoded.select", names, indent=4)
    ordered[-1] += _with_watermark(source.watermark)
    return [*selected, *ordered]


def _values(source: KafkaInput) -> str:
    return decoder(source, "value").shown


def _value(value: Value) -> str:
    if isinstance(value, str):
        return literal(value)
    return f"{{{', '.join(f'{literal(name)}: {literal(where)}' for name, where in value.plain().items())}}}"


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
