"""A StreamSpec as a PySpark program that a person can read and run.

Rules
- The text depends on the spec alone; equal specs give equal programs.
- It is formatted as ruff would format it, with lines of at most 120 signs where the content allows.
- Every text of the user's (SQL, names, topics) goes through one of two functions, `literal` and `block`, that make a
  Python literal of it; nothing is spliced in raw.
- Function names are the names of the inputs' views, which are plain by construction.
- Where the order of rows counts (`StreamSpec.in_order`), tables that are appended to are read one file after the other,
  and tables that are joined are brought to the rows.
- A full refresh reads its inputs with `spark.read`: topics up to the offsets that the refresh has fixed, tables as they
  stand. The SQL, and how a message becomes a row, are the same in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from penstock.compiler.decoding import columns_decoded, judged, needs_headers, rejected, rows, select
from penstock.compiler.lookups import broadcast
from penstock.compiler.messages import messages
from penstock.compiler.origins import decoder
from penstock.compiler.spec import (
    Follow,
    FromOffsets,
    FromTimestamp,
    Function,
    KafkaInput,
    Origin,
    Publish,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Watermark,
)
from penstock.compiler.state import knows_time
from penstock.compiler.statement import names_used
from penstock.compiler.text import WIDTH, block, call, literal, sentence
from penstock.kafka.security import Value, is_security
from penstock.project.expectations import Expectation

_IMPORTS = """from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import runtime
"""


def render_job(spec: StreamSpec) -> str:
    """The text of job.py."""
    parts = [f'"""{_docstring(spec)}"""\n\n{_IMPORTS}', f"SQL = {block(_sql(spec))}\n"]
    if spec.functions:
        parts.append(_functions(spec.functions))
    for each in spec.inputs:
        if isinstance(each, KafkaInput):
            parts.append("\n" + _kafka(each, spec))
        elif isinstance(each, TableStreamInput):
            parts.append("\n" + (_table(each) if spec.is_full else _table_stream(each, spec)))
    parts.append("\n" + _build(spec))
    if spec.follow is not None:
        parts.append("\n" + _follow(spec.follow, spec))
    parts.append("\n" + _stream(spec))
    parts.append('\nif __name__ == "__main__":\n    runtime.main(STREAM)\n')
    return "\n".join(parts)


def _sql(spec: StreamSpec) -> str:
    if not (spec.in_order and any(isinstance(each, TableInput) for each in spec.inputs)):
        return spec.sql
    return broadcast(spec.sql, [each.view for each in spec.inputs if not isinstance(each, TableInput)])


def _docstring(spec: StreamSpec) -> str:
    written = "source" if spec.is_source_table or spec.is_quarantine else "model"
    return (
        f"{sentence(f'Stream {spec.name}, compiled by Penstock from {spec.path}.')}\n\n"
        f"Change the {written}, not this file. Run it alone:\n"
        'spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR\n'
    )


def _functions(functions: Iterable[Function]) -> str:
    """The project's functions that the SQL calls, which the stream's session is to know."""
    lines = [f"    {literal(each.name)}: {block(each.definition)}," for each in functions]
    return "\n".join(["FUNCTIONS = {", *lines, "}"]) + "\n"


def _kafka(source: KafkaInput, spec: StreamSpec) -> str:
    wanted = _wanted(source, spec)
    kind = "Bad records of" if source.rejects else "Source"
    records, judgement = f"{source.view}__records", f"{source.view}__judged"
    lines = [
        *(_topic(source) if spec.is_full or spec.is_real_time else ()),
        *_statements(source, records, judgement, wanted),
        *_messages(source, wanted),
        "",
        "",
        f"def {source.view}(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"{kind} {source.relation}: {source.topics}, {_values(source)} values.")}"""',
        *(_security(source) if not spec.is_full else ()),
        *_records(source, spec),
        *_decoded(source, wanted),
        f"    records.createOrReplaceTempView({literal(records)})",
        *_counted(source, judgement),
        f"    rows = runtime.rows(spark, {literal(source.relation)}, {source.view.upper()})",
        f"    return rows{_with_watermark(source.watermark)}",
    ]
    if source.watermark is None or spec.is_full:
        lines[-2:] = [lines[-2].replace("rows =", "return", 1)]
    return "\n".join(lines) + "\n"


def _statements(source: KafkaInput, records: str, judgement: str, wanted: frozenset[str] | None) -> list[str]:
    """The SQL of the source: of its judged records and of the rows among them, or of every record."""
    if source.null_rows:
        return [f"{source.view.upper()} = {block(select(source, records, wanted=wanted, nulls=True))}"]
    shown = rejected(source, judgement) if source.rejects else rows(source, judgement, wanted=wanted)
    return [
        f"{judgement.upper()} = {block(judged(source, records, wanted=wanted))}",
        "",
        "",
        f"{source.view.upper()} = {block(shown)}",
    ]


def _counted(source: KafkaInput, judgement: str) -> list[str]:
    if source.null_rows:
        return []
    return [
        f"    judged = runtime.counted(spark, {literal(source.relation)}, {judgement.upper()})",
        f"    judged.createOrReplaceTempView({literal(judgement)})",
    ]


def _messages(source: KafkaInput, wanted: frozenset[str] | None) -> list[str]:
    """What is decoded before the SQL: keys and values with a schema."""
    lines = []
    for each in messages(source, columns_decoded(source, wanted)):
        arguments = [f"part={literal(each.part)}", f"format={literal(each.format)}"]
        arguments.append(_mapping("types", {name: literal(content) for name, content in each.types.items()}))
        if each.fields:
            arguments.append(_mapping("fields", {name: _tuple(paths) for name, paths in each.fields.items()}))
        arguments.append(f"framed={each.framed}")
        if each.subjects:
            arguments.append(f"subjects={_tuple(each.subjects)}")
        if each.written is not None:
            arguments.append(f"written={literal(each.written)}")
        arguments += [f"{name}=True" for name in ("record", "whole") if getattr(each, name)]
        made = call("runtime.Messages", arguments, indent=4)
        made[-1] += ","
        lines += made
    return ["", "", f"{source.view.upper()}__MESSAGES = (", *lines, ")"] if lines else []


def _mapping(name: str, values: Mapping[str, str]) -> str:
    inner = ", ".join(f"{literal(key)}: {value}" for key, value in values.items())
    if len(inner) + len(name) < WIDTH - 16:
        return f"{name}={{{inner}}}"
    lines = "\n".join(f"    {literal(key)}: {value}," for key, value in values.items())
    return f"{name}={{\n{lines}\n}}"


def _decoded(source: KafkaInput, wanted: frozenset[str] | None) -> list[str]:
    if not _messages(source, wanted):
        return []
    arguments = ["spark", "records", literal(source.relation), f"{source.view.upper()}__MESSAGES"]
    if source.registry:
        arguments.append(f"{{{', '.join(f'{literal(name)}: {_value(value)}' for name, value in source.registry)}}}")
    return call("records = runtime.decoded", arguments, indent=4)


def _records(source: KafkaInput, spec: StreamSpec) -> list[str]:
    """The read, on one line if it fits."""
    lines = [
        f'        spark.{"read" if spec.is_full else "readStream"}.format("kafka")',
        *(_snapshot_options(source, spec) if spec.is_full else _options(source, spec)),
        "        .load()",
    ]
    line = f"    records = {''.join(each.strip() for each in lines)}"
    return [line] if len(line) <= WIDTH else ["    records = (", *lines, "    )"]


def _wanted(source: KafkaInput, spec: StreamSpec) -> frozenset[str] | None:
    """The columns of a source that the SQL uses; None if it may use any."""
    names = names_used(spec.sql)
    if names is None:
        return None
    own = {source.watermark.column} if source.watermark and not spec.is_full else set()
    return frozenset(column.name for column in source.columns if column.name.lower() in names) | own


def _topic(source: KafkaInput) -> list[str]:
    """What a refresh reads of the broker, as a value: its offsets are asked for before each refresh."""
    arguments = [
        f"relation={literal(source.relation)}",
        f"topic={literal(source.topic)}" if source.topic is not None else f"pattern={literal(source.topic_pattern)}",
        *([f"partitions={source.partitions!r}"] if source.partitions else ()),
        *([f"bootstrap={literal(source.bootstrap)}"] if source.bootstrap is not None else ()),
        f"starting={_starting_value(source)}",
    ]
    secured = [f"{literal(n)}: {_value(v)}" for n, v in source.options if _is_secured(n, v)]
    if secured:
        arguments.append("security={\n" + "".join(f"    {line},\n" for line in secured) + "}")
    name = f"{source.view.upper()}_TOPIC"
    return [*call(f"{name} = runtime.Topic", arguments, indent=0, exploded=True)]


def _starting_value(source: KafkaInput) -> str:
    start = source.starting
    if isinstance(start, FromTimestamp):
        return str(start.milliseconds)
    if isinstance(start, FromOffsets):
        return f"{{{', '.join(f'{partition}: {at}' for partition, at in start.offsets)}}}"
    return literal(start)


def _snapshot_options(source: KafkaInput, spec: StreamSpec) -> list[str]:
    lines = [f"        .options(**runtime.snapshot_options(spark, {source.view.upper()}_TOPIC))"]
    if needs_headers(source, _wanted(source, spec)):
        lines.append('        .option("includeHeaders", "true")')
    own = [(name, value) for name, value in source.options if not _is_secured(name, value)]
    return [*lines, *(f"        .option({literal(name)}, {literal(str(value))})" for name, value in own)]


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
    options = [*_subscription(source), *_starting(source)]
    if backfills(spec):
        return _with(lines, [*options, *_safety(source, spec), *own], _paced(spec))
    if not spec.is_real_time:  # such a batch has no end that could be known before
        options.append(("maxOffsetsPerTrigger", str(spec.trigger.max_batch_rows)))
    if spec.trigger.buffer_limit > 1 and not spec.is_real_time:
        options.append(("minOffsetsPerTrigger", str(min(spec.trigger.buffer_limit, spec.trigger.max_batch_rows))))
        options.append(("maxTriggerDelay", literal(f"{spec.trigger.time_window_ms}ms")))
    return _with(lines, [*options, *_safety(source, spec), *own])


def _safety(source: KafkaInput, spec: StreamSpec) -> list[tuple[str, str]]:
    headers = needs_headers(source, _wanted(source, spec))
    return [("failOnDataLoss", literal("true")), *([("includeHeaders", literal("true"))] if headers else [])]


def _with(lines: list[str], options: Iterable[tuple[str, str]], *more: str) -> list[str]:
    return [*lines, *(f"        .option({literal(name)}, {value})" for name, value in options), *more]


def backfills(spec: StreamSpec) -> bool:
    """Whether the stream reads what is there in large batches before it goes on as its trigger says."""
    return not spec.is_full and any(isinstance(each, KafkaInput) and each.backfill for each in spec.inputs)


def _paced(spec: StreamSpec) -> str:
    """How much a batch reads: another answer while the history is read."""
    trigger = spec.trigger
    held = f", {trigger.buffer_limit}, {trigger.time_window_ms}" if trigger.buffer_limit > 1 else ""
    behind = [each.watermark for each in spec.inputs if not isinstance(each, TableInput)]
    at_once = ", at_once=True" if any(knows_time(spec, each) for each in behind) else ""
    return f"        .options(**runtime.paced(spark, {trigger.max_batch_rows}{held}{at_once}))"


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


def _values(source: KafkaInput) -> str:
    return decoder(source, "value").shown


def _value(value: Value) -> str:
    if isinstance(value, str):
        return literal(value)
    return f"{{{', '.join(f'{literal(name)}: {literal(where)}' for name, where in value.plain().items())}}}"


def _new_rows(source: TableStreamInput) -> str:
    return '.option("startingVersion", "latest")' if source.starting == "latest" else ""


def _table_stream(source: TableStreamInput, spec: StreamSpec) -> str:
    if source.rows == "upsert":
        lines = [
            f"def {source.view}(spark: SparkSession) -> DataFrame:",
            f'    """{sentence(f"The changes of {source.relation}: rows as they are now, and rows that are gone.")}"""',
            f"    return runtime.changes_of(spark, {literal(source.relation)})",
        ]
        return "\n".join(lines) + "\n"
    lines = [
        f"def {source.view}(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"The new rows of {source.relation}.")}"""',
        *_pace(spec),
        f'    reader = spark.readStream.format("delta").option({_LIMITS[spec.in_order]}){_new_rows(source)}',
        f"    return reader.table({literal(source.relation)}){_with_watermark(source.watermark)}",
    ]
    return "\n".join(lines) + "\n"


_LIMITS = {False: '"maxBytesPerTrigger", "64m"', True: '"maxFilesPerTrigger", "1"'}


def _pace(spec: StreamSpec) -> list[str]:
    why = "    # One commit after the other: Spark reads the files of a batch by their size, not in their order."
    return [why] if spec.in_order else []


def _table(source: TableStreamInput) -> str:
    lines = [
        f"def {source.view}(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"The rows of {source.relation}, as they stand.")}"""',
        f"    return spark.table({literal(source.relation)})",
    ]
    return "\n".join(lines) + "\n"


def _with_watermark(watermark: Watermark | None) -> str:
    return f".withWatermark({literal(watermark.column)}, {literal(watermark.delay)})" if watermark else ""


def _build(spec: StreamSpec) -> str:
    lines = [
        "def build(spark: SparkSession) -> DataFrame:",
        f'    """{sentence(f"The rows of {spec.output.shown}, as a {_frame(spec)}.")}"""',
    ]
    views = [each.view for each in spec.inputs if isinstance(each, KafkaInput | TableStreamInput)]
    lines += [f"    {view}(spark).createOrReplaceTempView({literal(view)})" for view in views]
    lines.append(f"    return spark.sql(SQL){_deduplicated(spec)}")
    return "\n".join(lines) + "\n"


def _follow(follow: Follow, spec: StreamSpec) -> str:
    lines = [
        f"FOLLOW = {block(follow.sql)}",
        "",
        "",
        "def follow(rows: DataFrame) -> DataFrame:",
        f'    """{sentence(f"The rows of {spec.output.shown} that changed rows make now; of others, none.")}"""',
        f"    rows.createOrReplaceTempView({literal(follow.view)})",
        "    return rows.sparkSession.sql(FOLLOW)",
    ]
    return "\n".join(lines) + "\n"


def _frame(spec: StreamSpec) -> str:
    if spec.follow is not None:
        return "streaming DataFrame of the rows that they follow"
    return "DataFrame, computed anew" if spec.is_full else "streaming DataFrame"


def _deduplicated(spec: StreamSpec) -> str:
    if not spec.deduplicate_by:
        return ""
    watermarks = [each.watermark for each in spec.inputs if isinstance(each, KafkaInput | TableStreamInput)]
    within = "WithinWatermark" if any(watermarks) and not spec.is_full else ""
    return f".dropDuplicates{within}([{', '.join(literal(name) for name in spec.deduplicate_by)}])"


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
    if spec.in_order and not all(isinstance(each, KafkaInput) for each in spec.inputs):
        arguments.append("in_order=True")
    if spec.joined:
        arguments.append("joined=True")
    if backfills(spec):
        arguments.append("backfill=True")
    if spec.output.view is not None:
        arguments.insert(3, f"view={literal(spec.output.view)}")
    if (changes := spec.output.changes) is not None:
        columns = [f"{name}={literal(column)}" for name, column in changes.model_dump().items()]
        arguments.append("\n".join(call("changes=runtime.Changes", columns, indent=0)))
    if spec.functions:
        arguments.append("functions=FUNCTIONS")
    if spec.follow is not None:
        arguments.append(f"follow=runtime.Follow(follow, keys={_tuple(spec.follow.keys)})")
    if spec.origin is Origin.LIVE_TEST:
        arguments.append("counts_rows=True")
    if spec.expectations:
        arguments.append("\n".join(["expectations=(", *map(_expectation, spec.expectations), ")"]))
    if spec.publish is not None:
        arguments.append("\n".join(call("publish=runtime.Publish", _published(spec.publish), indent=0)))
    if spec.output.on_schema_change != "fail":
        arguments.append(f"on_schema_change={literal(spec.output.on_schema_change)}")
    if spec.is_full:
        arguments.append(f"definition={literal(spec.hash[:16])}")
    if spec.is_full or spec.is_real_time:
        topics = [f"{each.view.upper()}_TOPIC" for each in spec.inputs if isinstance(each, KafkaInput)]
        arguments.append(f"topics=({', '.join(topics)}{',' if len(topics) == 1 else ''})")
    if spec.is_full:
        tables = [each.relation for each in spec.inputs if isinstance(each, TableStreamInput)]
        arguments.append(f"tables={_tuple(tables)}")
    return "\n".join(call("STREAM = runtime.Stream", arguments, indent=0, exploded=True)) + "\n"


def _expectation(expectation: Expectation) -> str:
    fields = [f"{name}={literal(value)}" for name, value in expectation.model_dump().items()]
    lines = call("runtime.Expectation", fields, indent=8)
    return "\n".join([*(line[4:] for line in lines[:-1]), f"{lines[-1][4:]},"])


def _published(publish: Publish) -> list[str]:
    found = []
    for name, value in publish.model_dump(exclude_defaults=True).items():
        shown = _tuple(value) if isinstance(value, tuple) else literal(value) if isinstance(value, str) else repr(value)
        found.append(f"{name}={shown}")
    return found


def is_continuous(spec: StreamSpec) -> bool:
    """Whether the inputs are asked all the time: topics are, and hold a buffer back themselves until it is full."""
    return all(each.kind == "kafka" for each in spec.inputs if each.kind != "table")


def _tuple(values: Iterable[str]) -> str:
    items = [literal(value) for value in values]
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
